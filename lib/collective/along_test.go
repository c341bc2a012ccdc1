package collective_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/xla"
)

// CollectivesAlong reports a program's collectives by mesh axes, here on a mesh of 2 × 3.
func TestCollectivesAlong(t *testing.T) {
	mesh := must.Get(devicetest.Open(t, 6).Mesh(xla.Axis("data", 2), xla.Axis("tensor", 3)))(t)
	p := must.Get(xla.Compile(mesh, func(x *graph.Node) []*graph.Node {
		return []*graph.Node{
			collective.AllReduce(x, collective.Sum, "data"),
			collective.AllGather(graph.Sin(x), 0, "tensor"),
			collective.RingShift(graph.Exp(x), 1, "tensor"),
			collective.AllReduce(graph.Cos(x), collective.Max),
		}
	}, xla.In(xla.Replicated()).Gives(xla.Replicated(), xla.Replicated(), xla.Shard(0, "tensor"), xla.Replicated())))(t)
	defer p.Close()
	if _, err := p.CollectivesAlong(); err == nil {
		t.Error("a program that is not compiled: no error")
	}
	if err := p.Prepare([]float32{1, 2, 3, 4}); err != nil {
		t.Fatal(err)
	}
	got := must.Get(p.CollectivesAlong())(t)
	want := map[string]xla.Report{
		"data":        {{Kind: xla.AllReduce, Count: 1, Bytes: 16}},
		"tensor":      {{Kind: xla.AllGather, Count: 1, Bytes: 48}, {Kind: xla.Permute, Count: 1, Bytes: 16}},
		"data,tensor": {{Kind: xla.AllReduce, Count: 1, Bytes: 16}},
	}
	if !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("got %v, want %v", got, want)
	}
}
