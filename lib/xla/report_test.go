package xla_test

import (
	"errors"
	"fmt"
	"log"
	"testing"

	"github.com/gomlx/compute"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/xla"
)

// A program reports the collectives that XLA compiled it to.
func ExampleProgram_Collectives() {
	backend, err := xla.Open(xla.Devices(4), xla.Plugin("cpu"))
	if err != nil {
		log.Fatal(err)
	}
	defer backend.Close()
	mesh, err := backend.Mesh(xla.Axis("data", 4))
	if err != nil {
		log.Fatal(err)
	}
	gather := xla.Collective{Kind: xla.AllGather, Along: []string{"data"}}
	p, err := xla.Compile(mesh, func(x *graph.Node) *graph.Node {
		sum := xla.Collective{Kind: xla.AllReduce, Reduce: compute.ReduceOpSum, Along: []string{"data"}}
		return graph.Mul(gather.Apply(x)[0], sum.Apply(graph.ReduceAllSum(x))[0])
	}, xla.In(xla.Shard(0, "data")).Gives(xla.Replicated()))
	if err != nil {
		log.Fatal(err)
	}
	if err := p.Prepare(make([]float32, 1024)); err != nil {
		log.Fatal(err)
	}
	fmt.Println(p.Collectives())
	// Output:
	// all-reduce ×1, 4 B; all-gather ×1, 4 KiB <nil>
}

// Each kind is counted, with the larger of inputs and outputs.
func TestReportCountsEveryKind(t *testing.T) { countsEveryKind(t, devicetest.OpenOwn(t, 4)) }

func TestReportCountsEveryKindOnGPUs(t *testing.T) {
	countsEveryKind(t, devicetest.OpenFor(t, "h100", 4))
}

func countsEveryKind(t *testing.T, backend *xla.Backend) {
	mesh := must.Get(backend.Mesh(xla.Axis("a", 2), xla.Axis("b", 2)))(t)
	along := []string{"b"}
	for _, c := range []struct {
		op    xla.Collective
		bytes int64 // of float32[4 2]
	}{
		{xla.Collective{Kind: xla.AllReduce, Reduce: compute.ReduceOpMax, Along: along}, 32},
		{xla.Collective{Kind: xla.AllGather, Along: along}, 64},
		{xla.Collective{Kind: xla.ReduceScatter, Reduce: compute.ReduceOpSum, Along: along}, 32},
		{xla.Collective{Kind: xla.AllToAll, Concat: 1, Along: along}, 32},
		{xla.Collective{Kind: xla.Permute, To: []int{1, -1}, Along: along}, 32},
	} {
		p := must.Get(xla.Compile(mesh, func(x *graph.Node) *graph.Node {
			return graph.ReduceAllSum(graph.Square(c.op.Apply(graph.Square(x))[0]))
		}, xla.In(xla.Replicated()).Gives(xla.Replicated())))(t)
		if err := p.Prepare([][]float32{{1, 2}, {3, 4}, {5, 6}, {7, 8}}); err != nil {
			t.Errorf("%v: %v", c.op.Kind, err)
			continue
		}
		got := must.Get(p.Collectives())(t)
		if want := (xla.Traffic{Kind: c.op.Kind, Count: 1, Bytes: c.bytes}); len(got) != 1 ||
			got.Of(c.op.Kind) != want {
			t.Errorf("%v: reported %+v, want %+v", c.op.Kind, got, want)
		}
		p.Close()
	}
}

// A program without communication reports nothing; one that is not compiled cannot report.
func TestReportOfNothing(t *testing.T) {
	mesh := must.Get(devicetest.OpenOwn(t, 2).Mesh(xla.Axis("data", 2)))(t)
	p := must.Get(xla.Compile(mesh, graph.Square, xla.In(xla.Shard(0, "data")).Gives(xla.Shard(0, "data"))))(t)
	defer p.Close()
	fails(p.Collectives())(t, "collectives before it is compiled", "not compiled")
	fails(p.Work())(t, "work before it is compiled", "not compiled")
	fails(p.Memory())(t, "memory before it is compiled", "not compiled")
	must.Do(t, p.Prepare([]float32{1, 2}))
	if report := must.Get(p.Collectives())(t); report.String() != "no collectives" {
		t.Errorf("reported %v", report)
	}
}

// XLA's plugin for CPUs reports that it has no profiler, before anything runs.
func TestNoProfiler(t *testing.T) {
	b := devicetest.OpenOwn(t, 1)
	_, err := b.Profile(func() error { t.Error("it runs all the same"); return nil })
	if must.Refuse(t, "a plugin for CPUs", err, b.Info().Plugin); !errors.Is(err, xla.ErrNoProfiler) {
		t.Errorf("error %v", err)
	}
	fails(b.Profile(nil))(t, "no function", "is nil: give one")
	b.Close()
	fails(b.Profile(func() error { return nil }))(t, "a closed backend", "closed")
}
