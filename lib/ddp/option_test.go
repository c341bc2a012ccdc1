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
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/lib/chain"
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
	for i, b := range ddp.Buckets(tree, dtypes.Float32, 25_000) {
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

// TestRefused has options, recipes, models and batches that cannot be, with what the errors name. A batch leaves the
// run as it was.
func TestRefused(t *testing.T) {
	backend, ctx := devicetest.Open(t, 2), context.Background()
	plain := train.Recipe{Model: toy.Model(false), Optimizer: optim.SGD(0.1)}
	with := func(change func(r *train.Recipe)) train.Recipe {
		r := plain
		change(&r)
		return r
	}
	scaled := with(func(r *train.Recipe) {
		r.Precision, _ = precision.ParsePolicy("fp32")
		r.Precision.Scaling = precision.Dynamic()
	})
	// smaller parameters have float32 states
	eight := with(func(r *train.Recipe) { r.Model, r.Optimizer = deep(2, 80), optim.Adam8bit(0.1) })
	broken := toy.Model(false)
	broken.Blocks[1].Apply = func(params.Nodes, *graph.Node, *graph.Node, *graph.Node) *graph.Node {
		panic(fmt.Errorf("broken"))
	}
	inputs, targets := toy.Batch(0, 4)
	three, _ := toy.Batch(0, 3)
	two, _ := toy.Batch(0, 2)
	ring := ddp.ByPlan(plan.Ring)
	for name, c := range map[string]struct {
		r               train.Recipe
		o               ddp.Options
		ranks           int
		inputs, targets *tensors.Tensor
		want            string
	}{
		"sync":          {plain, ddp.Options{Sync: "sometimes"}, 2, nil, nil, `"sometimes"`},
		"bucket":        {plain, ddp.Options{BucketBytes: -1}, 2, nil, nil, "BucketBytes is -1"},
		"accumulate":    {plain, ddp.Options{Accumulate: -2}, 2, nil, nil, "Accumulate is -2"},
		"every":         {plain, ddp.Options{Every: -1}, 2, nil, nil, "Every is -1"},
		"hook each":     {plain, ddp.Options{Hook: ring, EachMicroBatch: true}, 2, nil, nil, "leave one out"},
		"local hook":    {plain, ddp.Options{Hook: ring, Every: 2}, 2, nil, nil, "Every is 2"},
		"local scaling": {scaled, ddp.Options{Every: 2}, 2, nil, nil, "scale losses"},
		"no average":    {eight, ddp.Options{Every: 2}, 2, nil, nil, "local SGD cannot average"},
		"no model":      {train.Recipe{Optimizer: optim.SGD(1)}, ddp.Options{}, 2, nil, nil, "no model"},
		"no blocks": {with(func(r *train.Recipe) { r.Model = chain.Model{} }), ddp.Options{}, 2, nil, nil,
			"no blocks"},
		"replicas": {with(func(r *train.Recipe) { r.Replicas = replicas{} }), ddp.Options{}, 2, nil, nil,
			"Recipe.Replicas"},
		"no devices":   {plain, ddp.Options{}, 0, nil, nil, "0 devices"},
		"many devices": {plain, ddp.Options{}, 9, nil, nil, "9 devices, the backend has 2"},
		"rows":         {plain, ddp.Options{}, 2, three, three, "3 examples for 2 data-parallel devices"},
		"micro":        {plain, ddp.Options{Accumulate: 2}, 2, two, two, "make it a multiple of 4"},
		"other rows":   {plain, ddp.Options{}, 2, two, targets, "the same number of examples"},
		"nil":          {plain, ddp.Options{}, 2, nil, targets, "nil"},
		"picky": {with(func(r *train.Recipe) { r.Model = toy.Picky() }), ddp.Options{}, 2, inputs, targets,
			"not this batch"},
		"broken": {with(func(r *train.Recipe) { r.Model = broken }), ddp.Options{}, 2, inputs, targets, "broken"},
		"unlike": {with(func(r *train.Recipe) { r.Model = toy.Unlike() }), ddp.Options{}, 2, inputs, targets,
			"not one function"},
		"no way": {plain, ddp.Options{Hook: ddp.ByPlan(nil)}, 2, inputs, targets, "give it an algorithm"},
	} {
		run, err := ddp.New(ctx, backend, c.r, c.ranks, c.o)
		if err == nil {
			if _, err = run.Step(ctx, c.inputs, c.targets); run.Steps() != 0 {
				t.Errorf("%s: %d steps", name, run.Steps())
			}
			if _, e := run.Step(ctx, inputs, targets); c.targets != nil && c.inputs != inputs && e != nil {
				t.Errorf("%s: after a batch that does not fit: %v", name, e)
			}
			run.Close()
		} else if _, e := c.o.Plan(c.r, c.ranks); e == nil && name != "many devices" {
			t.Errorf("%s: there is a plan", name)
		}
		must.Refuse(t, name, err, c.want)
	}
	if _, err := ddp.New(ctx, nil, plain, 2, ddp.Options{}); err == nil || !strings.Contains(err.Error(), "xla.Open") {
		t.Errorf("no backend: %v", err)
	}
}

// replicas are none.
type replicas struct{ train.Replicas }
