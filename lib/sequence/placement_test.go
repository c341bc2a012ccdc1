package sequence_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/flash"
	"github.com/shardbook/shardbook/lib/sequence"
	"github.com/shardbook/shardbook/lib/xla"
)

// Eleven tokens on three ranks; positions from 11 on are padding.
func ExamplePlacement_Positions() {
	for _, p := range sequence.Placements() {
		fmt.Print(p, ":")
		for rank := range 3 {
			fmt.Print(" ", p.Positions(11, 3, rank))
		}
		fmt.Println()
	}
	// Output:
	// contiguous: [0 1 2 3] [4 5 6 7] [8 9 10 11]
	// striped: [0 3 6 9] [1 4 7 10] [2 5 8 11]
	// zigzag: [0 1 10 11] [2 3 8 9] [4 5 6 7]
}

// Every token is on exactly one rank, and every rank has the same number.
func TestPositions(t *testing.T) {
	for _, p := range append(sequence.Placements(), "") {
		for ranks := 1; ranks <= 8; ranks++ {
			for tokens := 1; tokens <= 50; tokens++ {
				local, seen := p.Local(tokens, ranks), []int{}
				for rank := range ranks {
					at := p.Positions(tokens, ranks, rank)
					if len(at) != local || !slices.IsSorted(at) {
						t.Fatalf("%s: rank %d of %d has %v of %d tokens, want %d in order", p, rank, ranks, at, tokens,
							local)
					}
					seen = append(seen, at...)
				}
				slices.Sort(seen)
				for i, at := range seen {
					if at != i {
						t.Fatalf("%s: %d tokens on %d ranks are at %v", p, tokens, ranks, seen)
					}
				}
				step := ranks
				if p == sequence.Zigzag {
					step = 2 * ranks
				}
				if len(seen) < tokens || len(seen) >= tokens+step {
					t.Fatalf("%s: %d tokens on %d ranks are padded to %d", p, tokens, ranks, len(seen))
				}
			}
		}
	}
}

// Work and Visible are the counts over all pairs of tokens.
func TestWork(t *testing.T) {
	for _, p := range sequence.Placements() {
		for _, c := range [][3]int{{24, 4, 2}, {23, 3, 3}, {17, 5, 1}, {16, 2, 100}} {
			tokens, ranks, block := c[0], c[1], c[2]
			work := p.Work(tokens, ranks, block)
			for hop := range ranks {
				for rank := range ranks {
					queries, keys := p.Positions(tokens, ranks, rank),
						p.Positions(tokens, ranks, (rank-hop+ranks)%ranks)
					blocks, pairs := map[[2]int]bool{}, 0
					for i, q := range queries {
						for j, k := range keys {
							if k <= q && q < tokens {
								blocks[[2]int{i / block, j / block}] = true
								pairs++
							}
						}
					}
					if work[hop][rank] != len(blocks) {
						t.Errorf("%s %v: %d matmuls of rank %d in hop %d, want %d", p, c, work[hop][rank], rank, hop,
							len(blocks))
					}
					want := float64(pairs) / float64(len(queries)*len(keys))
					if got := p.Visible(tokens, ranks, rank, hop); math.Abs(got-want) > 1e-15 {
						t.Errorf("%s %v: rank %d sees %g in hop %d, want %g", p, c, rank, got, hop, want)
					}
				}
			}
		}
	}
}

// With one block on each rank, Contiguous has a balance of (n+1)/2n (Striped Attention, Brandon et al. 2023, §2.3).
// Striped and Zigzag have at least 0.95, with 128 tokens on each rank in blocks of 8 and of 1.
func TestBalance(t *testing.T) {
	for n := 2; n <= 8; n++ {
		tokens := 128 * n
		if got, want := sequence.Balance(sequence.Contiguous.Work(tokens, n, 128)),
			float64(n+1)/float64(2*n); got != want {
			t.Errorf("contiguous on %d ranks: balance %g, want %g", n, got, want)
		}
		for _, p := range []sequence.Placement{sequence.Striped, sequence.Zigzag} {
			for _, block := range []int{8, 1} {
				if got := sequence.Balance(p.Work(tokens, n, block)); got < 0.95 || got > 1 {
					t.Errorf("%s on %d ranks in blocks of %d: balance %g", p, n, block, got)
				}
			}
		}
	}
	if got := sequence.Balance([][]int{{0, 0}}); got != 1 {
		t.Errorf("balance of no work is %g", got)
	}
}

func TestPanics(t *testing.T) {
	for name, f := range map[string]func(){
		"sequence: 0 tokens on 2 ranks: choose at least one of each": func() { sequence.Striped.Local(0, 2) },
		"sequence: rank 2 of 2: choose 0 to 1":                       func() { sequence.Striped.Positions(4, 2, 2) },
		"sequence: blocks of 0 tokens: choose at least 1":            func() { sequence.Zigzag.Work(4, 2, 0) },
		"sequence: Gather is set without Ring: choose a mesh axis for Ring, or unset Gather": func() {
			sequence.Group{Gather: true}.Traffic(sequence.Layer{}, 1, 1)
		},
	} {
		func() {
			defer func() {
				if err, ok := recover().(error); !ok || err.Error() != name {
					t.Errorf("panics with %v, want %s", err, name)
				}
			}()
			f()
		}()
	}
}

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
	mesh := must.Value(b.Mesh(xla.Axis("ring", ring), xla.Axis("heads", ulysses)))
	shard := xla.Shard(1, "ring", "heads")
	p := must.Value(xla.Compile(mesh, func(in nodes) nodes {
		out := s.Attention(in[0], in[1], in[2], layer.Tokens, o)
		if !backward {
			return nodes{out}
		}
		return append(nodes{out}, graph.Gradient(graph.ReduceAllSum(graph.Mul(out, in[3])), in[:3]...)...)
	}, xla.In(shard).Gives(shard)))
	t.Cleanup(p.Close)
	ranks := ring * ulysses
	of := func(heads int) *tensors.Tensor {
		tokens := layer.Tokens + (2*ranks-layer.Tokens%(2*ranks))%(2*ranks) // padded for Zigzag
		return tensors.FromShape(shapes.Make(layer.Type, layer.Batch, tokens, heads, layer.Width))
	}
	q, k := of(layer.Heads), of(layer.KeyHeads)
	must.Do(t, p.Prepare(q, k, k, q))
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
			report := must.Value(program(t, b, c.group, layer, c.ring, c.ulysses, c.o, backward).Collectives())
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
		m := must.Value(program(t, b, s, layer, ranks, 1, flash.Causal(), true).Memory())
		return m.Arguments + m.Outputs + m.Temporary
	}
	one, four, eight := needs(1), needs(4), needs(8)
	t.Logf("a rank of 1, 4 and 8 has %d, %d and %d KiB for %d tokens of its own", one>>10, four>>10, eight>>10, tokens)
	if float64(eight) > float64(four)/0.9 || float64(eight) > 2.5*float64(one) || eight > 4*4*tokens*tokens {
		t.Errorf("a rank of 1, 4 and 8 needs %d, %d and %d bytes for %d tokens of its own", one, four, eight, tokens)
	}
}

// TestBetween cuts the program of a ring between programs: the next keys and values are sent while the program of a hop
// runs, which does not use them, and no rank has more than two ranks' keys at once. (Packages that run such programs
// test their results.)
func TestBetween(t *testing.T) {
	const ranks, tokens, heads, width = 4, 32, 2, 8
	mesh := must.Value(devicetest.One().Mesh(xla.Axis("data", 1)))
	own := shapes.Make(dtypes.Float32, 1, tokens/ranks, heads, width)
	attend := func(in []*graph.Node) []*graph.Node {
		collective.Between(in[0].Graph(), "ring", ranks, in[3])
		g := sequence.Group{Ring: "ring", Placement: sequence.Zigzag}
		return []*graph.Node{g.Attention(in[0], in[1], in[2], tokens, flash.Causal())}
	}
	cut := must.Value(xla.NewSegments(mesh, attend, own, own, own, shapes.Make(dtypes.Int32)))
	layer := sequence.Layer{Batch: 1, Tokens: tokens, Heads: heads, KeyHeads: heads, Width: width, Type: dtypes.Float32}
	there, _ := sequence.Group{Ring: "ring"}.Traffic(layer, ranks, 1)
	var bytes int64
	for n, s := range cut.Exchanges {
		bytes += s.Shape.ByteSize()
		received := func(k int) bool {
			return slices.Contains(cut.Programs[k].In, xla.Ref{Kind: xla.RefReceived, Number: n})
		}
		if k := s.Before; received(k) || !received(k+1) || cut.Takes(k+2, xla.Ref{Kind: xla.RefReceived, Number: n}) {
			t.Errorf("what shift %d receives is not used by program %d alone: %+v", n, k+1, cut.Programs)
		}
		if of := s.Of[0]; n > 0 && of != (xla.Ref{Kind: xla.RefReceived, Number: n - 1}) {
			t.Errorf("shift %d is of %v", n, of)
		}
	}
	if len(cut.Exchanges) != there[0].Count || bytes != there[0].Bytes {
		t.Errorf("%d shifts of %d bytes, want %d of %d", len(cut.Exchanges), bytes, there[0].Count, there[0].Bytes)
	}
	gathers := func(in []*graph.Node) []*graph.Node {
		collective.Between(in[0].Graph(), "ring", ranks, in[3])
		g := sequence.Group{Ring: "ring", Gather: true}
		return []*graph.Node{g.Attention(in[0], in[1], in[2], tokens, flash.Causal())}
	}
	if _, err := xla.NewSegments(mesh, gathers, own, own, own, shapes.Make(dtypes.Int32)); err == nil {
		t.Error("Gather along an axis between programs: no error")
	}
}
