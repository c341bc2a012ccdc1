// Pipeline draws two schedules of pipeline parallelism, and trains a small GPT by the better one on two ranks, each a
// goroutine with a device of its own and half of the model.
//
// Output:
//
//	1f1b is idle for 20% of a step:
//	rank 0 │0  1  ·  ·  0b─── 2  1b─── 3  2b─── ·  3b───
//	rank 1 │·  0  0b─── 1  1b─── 2  2b─── 3  3b─── ·  ·
//	0 forward, 0b backward, · idle; a column is 1
//
//	zb-h1 is idle for 8% of a step:
//	rank 0 │0  1  ·  0i 0w 2  1i 1w 3  2i 2w 3i 3w
//	rank 1 │·  0  0i 1  1i 0w 2  2i 1w 3  3i 2w 3w
//	0 forward, 0i input gradient, 0w weight gradient, · idle; a column is 1
//
//	step  1: loss 5.5
//	step 11: loss 3.7
package main

import (
	"context"
	"fmt"
	"log"

	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/pipeline/schedule"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

func main() {
	const ranks, microbatches = 2, 4
	var last schedule.Schedule
	for _, kind := range []schedule.Kind{schedule.Kind1F1B, schedule.KindZBH1} {
		last = must(schedule.New(kind, ranks, microbatches, 0))
		timeline := must(last.Simulate(schedule.Equal()))
		fmt.Printf("%s is idle for %.0f%% of a step:\n%v\n", kind, 100*timeline.Bubble, timeline)
	}

	backend := must(xla.Open(xla.Devices(ranks)))
	defer backend.Close()
	config := gpt.Config{Layers: 2, Width: 16, Heads: 2, Seq: 16, Vocab: 256}
	batches := must(gpt.Reference().Batches(config, 8)) // 8 sequences, so that a micro-batch has 2
	engine := must(pipeline.NewEngine(backend, train.Recipe{Model: config, Rule: optim.AdamW(0.01)}))
	defer engine.Close()
	pipe := must(engine.Pipeline(pipeline.Options{Schedule: last}))

	err := group.Run(context.Background(), ranks, func(ctx context.Context, g group.Group) error {
		rank, err := pipe.Join(ctx, g, g.Rank())
		if err != nil {
			return err // which is then an error of all ranks
		}
		defer rank.Close()
		for range 11 {
			inputs, targets, err := batches.Step(rank.Steps())
			if err != nil {
				return err
			}
			metrics, err := rank.Step(ctx, inputs, targets)
			if err != nil {
				return err
			}
			loss, err := rank.Loss(ctx, metrics)
			if err != nil {
				return err
			}
			if n := rank.Steps(); g.Rank() == 0 && n%10 == 1 {
				fmt.Printf("step %2d: loss %.1f\n", n, loss)
			}
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
}

// must ends the program where a call failed.
func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
