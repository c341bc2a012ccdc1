package pipeline_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/pipeline/schedule"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// noted is a worker that notes what it does.
type noted struct {
	pipeline.Worker
	did *[]string
}

func (n noted) Compute(ctx context.Context, a schedule.Action, version int, in pipeline.Message) (pipeline.Message, error) {
	*n.did = append(*n.did, a.String())
	return n.Worker.Compute(ctx, a, version, in)
}

// Any schedule can be played with any worker: here one that sleeps, and notes what it does.
func ExamplePlayer_Play() {
	s, err := schedule.New(schedule.Kind1F1B, 2, 3, 0)
	if err != nil {
		panic(err)
	}
	player, err := pipeline.NewPlayer(s)
	if err != nil {
		panic(err)
	}
	did := make([][]string, 2)
	if err := group.Run(context.Background(), 2, func(ctx context.Context, g group.Group) error {
		worker := noted{pipeline.Sleeper{Unit: 100 * time.Microsecond}, &did[g.Rank()]}
		return player.Play(ctx, g, worker, pipeline.PlayOptions{})
	}); err != nil {
		panic(err)
	}
	for rank, actions := range did {
		fmt.Println("rank", rank, strings.Join(actions, " "))
	}
	// Output:
	// rank 0 0F0 0F1 0B0 0F2 0B1 0B2 0U2
	// rank 1 1F0 1B0 1F1 1B1 1F2 1B2 1U2
}

// A model of four blocks on two ranks, each a goroutine with a device of its own, and on one device.
func ExampleEngine() {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	backend, err := xla.Open(xla.Devices(2))
	must(err)
	defer backend.Close()
	recipe := train.Recipe{Model: toy.Model(false), Rule: optim.AdamW(0.05)}
	engine, err := pipeline.NewEngine(backend, recipe)
	must(err)
	defer engine.Close()
	s, err := schedule.New(schedule.KindZBH1, 2, 4, 0)
	must(err)
	p, err := engine.Pipeline(pipeline.Options{Schedule: s})
	must(err)

	const steps, rows = 3, 8
	var print sync.Once
	must(group.Run(context.Background(), p.Ranks(), func(ctx context.Context, g group.Group) error {
		rank, err := p.Join(ctx, g, g.Rank())
		if err != nil {
			return err
		}
		defer rank.Close()
		var losses []float64
		for range steps {
			inputs, targets := toy.Batch(rank.Steps(), rows)
			m, err := rank.Step(ctx, inputs, targets)
			if err != nil {
				return err
			}
			loss, err := rank.Loss(ctx, m)
			if err != nil {
				return err
			}
			losses = append(losses, loss)
		}
		print.Do(func() { fmt.Printf("two ranks:  %.4f\n", losses) })
		return nil
	}))

	mesh, err := backend.Mesh(xla.Axis(train.Axis, 1))
	must(err)
	run, err := train.New(mesh, recipe)
	must(err)
	defer run.Close()
	var losses []float64
	for range steps {
		m, err := run.Step(toy.Batch(run.Steps(), rows))
		must(err)
		losses = append(losses, m.Loss)
	}
	fmt.Printf("one device: %.4f\n", losses)
	// Output:
	// two ranks:  [0.3583 0.3337 0.2151]
	// one device: [0.3583 0.3337 0.2151]
}
