package sequence_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/flash"
	"github.com/shardbook/shardbook/lib/sequence"
	"github.com/shardbook/shardbook/lib/xla"
)

// What each of four devices sends for a layer, with 8192 tokens, 32 query heads and 8 key heads of width 128.
func ExampleGroup_Traffic() {
	layer := sequence.Layer{Batch: 1, Tokens: 8192, Heads: 32, KeyHeads: 8, Width: 128, Type: dtypes.BFloat16}
	sent := func(name string, s sequence.Group, ring, ulysses int) {
		forward, backward := s.Traffic(layer, ring, ulysses)
		total := func(moves []sequence.Move) (mib int64) {
			for _, m := range moves {
				mib += m.Sent >> 20
			}
			return mib
		}
		fmt.Printf("%-8s %3d MiB forwards, %3d MiB backwards\n", name, total(forward), total(backward))
	}
	sent("ring", sequence.Group{Ring: "a"}, 4, 1)
	sent("gather", sequence.Group{Ring: "a", Gather: true}, 4, 1)
	sent("Ulysses", sequence.Group{Ulysses: "b"}, 1, 4)
	sent("hybrid", sequence.Group{Ring: "a", Ulysses: "b"}, 2, 2)
	// Output:
	// ring      24 MiB forwards,  88 MiB backwards
	// gather    24 MiB forwards,  48 MiB backwards
	// Ulysses   30 MiB forwards,  30 MiB backwards
	// hybrid    28 MiB forwards,  60 MiB backwards
}

// program compiles attention of sharded operands, with its gradients if backward.
func program(t *testing.T, b *xla.Backend, s sequence.Group, layer sequence.Layer, ring, ulysses int, o flash.Options,
	backward bool) *xla.Program {
	t.Helper()
	mesh, err := b.Mesh(xla.Axis("ring", ring), xla.Axis("heads", ulysses))
	if err != nil {
		t.Fatal(err)
	}
	shard := xla.Shard(1, "ring", "heads")
	p, err := xla.Compile(mesh, func(in nodes) nodes {
		out := s.Attention(in[0], in[1], in[2], layer.Tokens, o)
		if !backward {
			return nodes{out}
		}
		return append(nodes{out}, graph.Gradient(graph.ReduceAllSum(graph.Mul(out, in[3])), in[:3]...)...)
	}, xla.In(shard).Gives(shard))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	ranks := ring * ulysses
	of := func(heads int) *tensors.Tensor {
		tokens := layer.Tokens + (2*ranks-layer.Tokens%(2*ranks))%(2*ranks) // padded for Zigzag
		return tensors.FromShape(shapes.Make(layer.Type, layer.Batch, tokens, heads, layer.Width))
	}
	q, k := of(layer.Heads), of(layer.KeyHeads)
	if err := p.Prepare(q, k, k, q); err != nil {
		t.Fatal(err)
	}
	return p
}

// XLA's program has exactly the predicted traffic, in either pass.
func TestTraffic(t *testing.T) {
	b := devicetest.Open(t, 4)
	for _, c := range []struct {
		group         sequence.Group
		ring, ulysses int
		dtype         dtypes.DType
		o             flash.Options
	}{
		{sequence.Group{Ring: "ring", Placement: sequence.Zigzag}, 4, 1, dtypes.Float32, flash.Causal()},
		{sequence.Group{Ring: "ring", Placement: sequence.Zigzag}, 3, 1, dtypes.BFloat16, flash.Options{}},
		{sequence.Group{Ring: "ring", Placement: sequence.Zigzag, Gather: true}, 3, 1, dtypes.BFloat16, flash.Causal()},
		{sequence.Group{Ulysses: "heads"}, 1, 4, dtypes.Float32, flash.Causal()},
		{sequence.Group{Ring: "ring", Placement: sequence.Zigzag, Ulysses: "heads"}, 2, 2, dtypes.BFloat16,
			flash.Causal()},
	} {
		layer := sequence.Layer{Batch: 2, Tokens: 24, Heads: 8, KeyHeads: 4, Width: 4, Type: c.dtype}
		for _, backward := range []bool{false, true} {
			report, err := program(t, b, c.group, layer, c.ring, c.ulysses, c.o, backward).Collectives()
			if err != nil {
				t.Fatal(err)
			}
			forwards, backwards := c.group.Traffic(layer, c.ring, c.ulysses)
			plan := slices.Clone(forwards)
			if c.ring > 1 { // the all-to-all of collective.Rank
				plan = append(plan, sequence.Move{Traffic: xla.Traffic{Kind: xla.AllToAll, Count: 1,
					Bytes: 4 * int64(c.ring)}})
			}
			if backward {
				plan = slices.Concat(plan, backwards)
			}
			for _, kind := range []xla.CollectiveKind{xla.AllReduce, xla.AllGather, xla.ReduceScatter, xla.AllToAll,
				xla.Permute} {
				want := xla.Traffic{Kind: kind}
				for _, m := range plan {
					if m.Kind == kind {
						want.Count, want.Bytes = want.Count+m.Count, want.Bytes+m.Bytes
					}
				}
				if got := report.Of(kind); got != want {
					t.Errorf("%+v, backward %v: XLA has %+v, predicted are %+v", c.group, backward, got, want)
				}
			}
		}
	}
}

// With a fixed number of tokens on each rank, a rank's memory does not grow with the number of ranks: eight ranks
// support at least 0.9 times twice the context of four. It needs at most 2.5 times the memory of one device with as
// many tokens, because of send and receive buffers, and far less than the scores would.
func TestMemory(t *testing.T) {
	b := devicetest.Open(t, 8)
	const tokens = 1024 // of each rank
	needs := func(ranks int) int64 {
		s := sequence.Group{Ring: "ring", Placement: sequence.Zigzag}
		layer := sequence.Layer{Batch: 1, Tokens: ranks * tokens, Heads: 4, KeyHeads: 4, Width: 32,
			Type: dtypes.Float32}
		m, err := program(t, b, s, layer, ranks, 1, flash.Causal(), true).Memory()
		if err != nil {
			t.Fatal(err)
		}
		return m.Arguments + m.Outputs + m.Temporary
	}
	one, four, eight := needs(1), needs(4), needs(8)
	t.Logf("a rank of 1, 4 and 8 has %d, %d and %d KiB for %d tokens of its own", one>>10, four>>10, eight>>10, tokens)
	if float64(eight) > float64(four)/0.9 || float64(eight) > 2.5*float64(one) || eight > 4*4*tokens*tokens {
		t.Errorf("a rank of 1, 4 and 8 needs %d, %d and %d bytes for %d tokens of its own", one, four, eight, tokens)
	}
}
