package ddp_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/collective/plan"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/train"
)

// Gradients come from the last layer first, and a bucket is closed before one that would not fit.
func ExampleBuckets() {
	tree := params.Tree{
		params.New("first.w", dtypes.Float32, 100, 100),
		params.New("first.b", dtypes.Float32, 100),
		params.New("last.w", dtypes.Float32, 100, 50),
		params.New("last.b", dtypes.Float32, 50),
	}
	for i, b := range ddp.Buckets(tree, nil, dtypes.Float32, 25_000) {
		fmt.Println("bucket", i, "of", b.Bytes(), "bytes")
		for k, s := range b.Params {
			fmt.Println("  from", b.Offsets[k], s)
		}
	}
	// Output:
	// bucket 0 of 20600 bytes
	//   from 0 last.b (Float32)[50]
	//   from 50 last.w (Float32)[100, 50]
	//   from 5050 first.b (Float32)[100]
	// bucket 1 of 40000 bytes
	//   from 0 first.w (Float32)[100, 100]
}

func TestOptionErrors(t *testing.T) {
	backend := devicetest.Open(t, 2)
	plain := train.Recipe{Model: toy.Model(false), Rule: optim.SGD(0.1)}
	with := func(change func(r *train.Recipe)) train.Recipe {
		r := plain
		change(&r)
		return r
	}
	scaled := with(func(r *train.Recipe) {
		r.Precision, _ = precision.ParsePolicy("fp32")
		r.Precision.Scaling = precision.Dynamic()
	})
	for name, c := range map[string]struct {
		r    train.Recipe
		o    ddp.Options
		want string
	}{
		"sync":            {plain, ddp.Options{Sync: "sometimes"}, `"sometimes"`},
		"bucket":          {plain, ddp.Options{BucketBytes: -1}, "BucketBytes is -1"},
		"accumulate":      {plain, ddp.Options{Accumulate: -2}, "Accumulate is -2"},
		"every":           {plain, ddp.Options{Every: -1}, "Every is -1"},
		"servers":         {plain, ddp.Options{Servers: -1, Sync: ddp.Server}, "Servers is -1"},
		"no servers":      {plain, ddp.Options{Servers: 1}, "has no servers"},
		"hook each":       {plain, ddp.Options{Hook: ddp.ByPlan(plan.Ring), EachMicroBatch: true}, "leave one out"},
		"served hook":     {plain, ddp.Options{Hook: ddp.ByPlan(plan.Ring), Sync: ddp.Async}, "no all-reduce"},
		"local hook":      {plain, ddp.Options{Hook: ddp.ByPlan(plan.Ring), Every: 2}, "Every is 2"},
		"local scaling":   {scaled, ddp.Options{Every: 2}, "scales losses"},
		"served clipping": {with(func(r *train.Recipe) { r.Clip = 1 }), ddp.Options{Sync: ddp.Server}, "cannot clip"},
		"served scaling":  {scaled, ddp.Options{Sync: ddp.Server}, "scale losses"},
		"no model":        {train.Recipe{Rule: optim.SGD(1)}, ddp.Options{}, "no model"},
		"no blocks":       {with(func(r *train.Recipe) { r.Model = chain.Model{} }), ddp.Options{}, "no blocks"},
	} {
		if _, err := ddp.NewEngine(backend, c.r, c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
	if _, err := ddp.NewEngine(nil, plain, ddp.Options{}); err == nil {
		t.Error("no backend: no error")
	}
}

// TestJoinErrors makes mistakes that leave a rank as it was, or never make one.
func TestJoinErrors(t *testing.T) {
	backend := devicetest.Open(t, 2)
	plain := train.Recipe{Model: toy.Model(false), Rule: optim.SGD(0.1)}
	join := func(r train.Recipe, o ddp.Options, then func(ctx context.Context, rank *ddp.Rank) error) error {
		e := newEngine(t, backend, r, o)
		return group.Run(context.Background(), 2, func(ctx context.Context, g group.Group) error {
			rank, err := e.Join(ctx, g, g.Rank())
			if err != nil {
				return err
			}
			return then(ctx, rank)
		})
	}
	step := func(inputs, targets *tensors.Tensor) func(ctx context.Context, rank *ddp.Rank) error {
		return func(ctx context.Context, rank *ddp.Rank) error {
			_, err := rank.Step(ctx, inputs, targets)
			if rank.Steps() != 0 {
				return fmt.Errorf("%d steps after %w", rank.Steps(), err)
			}
			good, goals := toy.Batch(0, 4)
			if _, e := rank.Step(ctx, good, goals); e != nil {
				return fmt.Errorf("after an error: %w", e)
			}
			return err
		}
	}
	inputs, targets := toy.Batch(0, 3)
	half, _ := toy.Batch(0, 2)
	eight := plain
	eight.Model, eight.Rule = deep(2, 80), optim.Adam8bit(0.1) // smaller parameters have float32 states
	closed := func(ctx context.Context, rank *ddp.Rank) error {
		if err := rank.Close(); err != nil {
			return err
		}
		_, err := rank.Step(ctx, inputs, targets)
		return err
	}
	picky := train.Recipe{Model: toy.Picky(), Rule: optim.SGD(1)}
	wrong := func(ctx context.Context, rank *ddp.Rank) error {
		_, err := rank.Step(ctx, half, half)
		if _, e := rank.Params(); e != nil {
			return e
		}
		return err
	}
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"rows":         {join(plain, ddp.Options{}, step(inputs, targets)), "3 rows is not divisible by 2 ranks"},
		"micro":        {join(plain, ddp.Options{Accumulate: 2}, step(half, half)), "not divisible by 2 ranks with 2 micro-batches"},
		"other rows":   {join(plain, ddp.Options{}, step(half, targets)), "as many rows"},
		"nil":          {join(plain, ddp.Options{}, step(nil, targets)), "nil"},
		"many servers": {join(plain, ddp.Options{Sync: ddp.Server, Servers: 3}, closed), "Servers is 3 in a group of 2"},
		"no average":   {join(eight, ddp.Options{Every: 2}, closed), "has no average"},
		"picky":        {join(picky, ddp.Options{}, wrong), "not this batch"},
		"closed":       {join(plain, ddp.Options{}, closed), "closed"},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", name, c.err, c.want)
		}
	}
	broken := toy.Model(false)
	broken.Blocks[1].Apply = func(params.Nodes, *graph.Node, *graph.Node, *graph.Node) *graph.Node { panic(fmt.Errorf("broken")) }
	for want, m := range map[string]chain.Model{"broken": broken, "not one function": toy.Unlike()} {
		r := train.Recipe{Model: m, Rule: optim.SGD(1)}
		err := join(r, ddp.Options{}, func(ctx context.Context, rank *ddp.Rank) error {
			_, err := rank.Step(ctx, half, half)
			return err
		})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}
