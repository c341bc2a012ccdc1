package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/xla"
)

// BenchmarkPlay says what it costs to carry a schedule out: a step of GPipe of a layer of one number for each stage,
// over a loop that sends and receives the same messages between the same ranks, one after another, and does nothing
// else. The two take turns. The ratios are the median of the rounds' and that of the least times.
func BenchmarkPlay(b *testing.B) {
	const microbatches, inner = 64, 4
	plan := must.Get(pipeline.GPipe(pipelineRanks, microbatches))(b)
	backend := must.Get(xla.Open(xla.Devices(pipelineRanks), xla.Plugin("cpu")))(b)
	defer backend.Close()
	size := pipelineSize{Microbatches: microbatches}
	smallest := pipelineCase{size, pipeline.KindGPipe, pipelineRanks,
		pipelineRanks}.smallest(pipeline.Options{Schedule: plan})
	played := trainSubject{backend: backend, read: func([]byte) (trial, error) { return smallest, nil }}
	must.Get(played.prepare(nil))(b)
	defer played.run.Close()
	groups := must.Get(group.New(pipelineRanks))(b)
	ways := []func() error{
		func() error {
			_, err := played.step()
			return err
		},
		func() error {
			return byRanks(func(ctx context.Context, i int) error { return passOn(ctx, groups[i], microbatches) })
		},
	}
	took := make([]sampleTimes, len(ways))
	for round := 0; b.Loop(); round++ {
		for i := range ways {
			k := (round + i) % len(ways)
			begin := time.Now()
			for range inner {
				must.Do(b, ways[k]())
			}
			took[k] = append(took[k], milliseconds(begin, inner))
		}
	}
	actions := 0
	for _, rank := range plan.Ranks {
		actions += len(rank)
	}
	b.ReportMetric(median(pairRatios(took[1], took[:1])), "play/loop")
	b.ReportMetric(slices.Min(took[0])/slices.Min(took[1]), "play/loop-of-least")
	b.ReportMetric(1e3*slices.Min(took[0])/float64(actions), "least-µs/action")
	b.ReportMetric(0, "ns/op") // steps of both; none of the above
}

// passOn passes messages on along the ranks, and then back.
func passOn(ctx context.Context, g group.Group, messages int) error {
	last := g.Size() - 1
	for _, way := range []struct{ from, to int }{{g.Rank() - 1, g.Rank() + 1}, {g.Rank() + 1, g.Rank() - 1}} {
		for range messages {
			x := make([]float32, 1)
			if way.from >= 0 && way.from <= last {
				if err := group.Recv(ctx, g, x, way.from); err != nil {
					return err
				}
			}
			if way.to >= 0 && way.to <= last {
				if err := group.Send(ctx, g, x, way.to); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// byRanks has every rank do its part. The first that fails ends the others' waiting for it.
func byRanks(part func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	errs := make([]error, pipelineRanks)
	var all sync.WaitGroup
	for i := range pipelineRanks {
		all.Go(func() {
			if errs[i] = part(ctx, i); errs[i] != nil {
				cancel()
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
