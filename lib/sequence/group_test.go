package sequence_test

import (
	"fmt"
	"slices"
	"strings"
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

// Every device takes the tokens at its positions, and a token's gradient comes from the device that has it.
func TestTake(t *testing.T) {
	b := devicetest.Open(t, 6)
	for _, c := range []struct {
		group         sequence.Group
		ring, ulysses int
	}{
		{sequence.Group{Ring: "ring", Ulysses: "heads"}, 2, 2},
		{sequence.Group{Ring: "ring", Ulysses: "heads", Placement: sequence.Striped}, 2, 3},
		{sequence.Group{Ring: "ring", Ulysses: "heads", Placement: sequence.Zigzag}, 3, 2},
		{sequence.Group{Ring: "ring", Placement: sequence.Zigzag}, 3, 1},
		{sequence.Group{Ulysses: "heads"}, 1, 4},
	} {
		const tokens, rows = 13, 2
		mesh, err := b.Mesh(xla.Axis("ring", c.ring), xla.Axis("heads", c.ulysses))
		if err != nil {
			t.Fatal(err)
		}
		all := xla.Shard(0, "ring", "heads")
		local := 0
		p, err := xla.Compile(mesh, func(x *graph.Node) nodes {
			g := x.Graph()
			local = c.group.Local(g, tokens)
			mine := c.group.Take(x, -1) // (rows, local)
			real := graph.ConvertDType(c.group.Real(g, tokens), dtypes.Float32)
			real = graph.BroadcastToDims(graph.InsertAxes(real, 0), rows, local)
			return nodes{c.group.Positions(g, tokens), graph.TransposeAllAxes(mine, 1, 0),
				graph.Gradient(graph.ReduceAllSum(graph.Mul(graph.Mul(mine, mine), real)), x)[0]}
		}, xla.In(xla.Replicated()).Gives(all))
		if err != nil {
			t.Fatal(err)
		}
		x := make([]float32, rows*tokens)
		for i := range x {
			x[i] = float32(i + 1)
		}
		out, err := p.Call(tensors.FromFlatDataAndDimensions(x, rows, tokens))
		p.Close()
		if err != nil {
			t.Fatal(err)
		}
		ranks := c.ring * c.ulysses
		var want []int32
		for rank := range c.ring {
			for _, at := range c.group.Placement.Positions(local*ranks, c.ring, rank) {
				want = append(want, int32(at))
			}
		}
		positions, err := out[0].Merge()
		if err != nil {
			t.Fatal(err)
		}
		if got := tensors.MustCopyFlatData[int32](positions); !slices.Equal(got, want) {
			t.Errorf("%+v: positions are %v, want %v", c.group, got, want)
		}
		taken, err := out[1].Merge()
		if err != nil {
			t.Fatal(err)
		}
		for i, at := range want {
			for row := range rows {
				if got := wide(taken)[i*rows+row]; got != float64(x[row*tokens+min(int(at), tokens-1)]) {
					t.Fatalf("%+v: element %d of row %d is %g, want that of token %d", c.group, i, row, got, at)
				}
			}
		}
		gradients, err := out[2].Merge()
		if err != nil {
			t.Fatal(err)
		}
		for i, x := range x {
			sum := 0.0
			for device := range ranks {
				sum += wide(gradients)[device*rows*tokens+i]
			}
			if sum != 2*float64(x) {
				t.Errorf("%+v: the gradient of element %d is %g, want %g", c.group, i, sum, 2*x)
			}
		}
	}
}

func TestErrors(t *testing.T) {
	b := devicetest.Open(t, 2)
	mesh, err := b.Mesh(xla.Axis("ring", 2), xla.Axis("one", 1))
	if err != nil {
		t.Fatal(err)
	}
	ring, ulysses := sequence.Group{Ring: "ring"}, sequence.Group{Ulysses: "ring"}
	f32, positions := dtypes.Float32, shapes.Make(dtypes.Int32, 4)
	for _, c := range []struct {
		group             sequence.Group
		tokens, heads, kv int
		dtype             dtypes.DType
		with              func(g *graph.Graph, o *flash.Options)
		want              string
	}{
		{sequence.Group{Ring: "ring", Placement: "spiral"}, 8, 2, 2, f32, nil,
			`unknown placement "spiral": choose "contiguous", "striped" or "zigzag"`},
		{sequence.Group{Ring: "ring", Ulysses: "ring"}, 8, 2, 2, f32, nil,
			`Ring and Ulysses both are mesh axis "ring": choose two axes`},
		{sequence.Group{Ulysses: "ring", Gather: true}, 8, 2, 2, f32, nil,
			"Gather is set without Ring: choose a mesh axis for Ring"},
		{sequence.Group{Ulysses: "ring", Placement: sequence.Zigzag}, 8, 2, 2, f32, nil,
			`Placement is "zigzag" without Ring: choose a mesh axis for Ring`},
		{sequence.Group{Ring: "ring", Reduce: dtypes.Int32}, 8, 2, 2, f32, nil,
			"Reduce is Int32: choose Float32 or BFloat16"},
		{sequence.Group{Ring: "ring", Reduce: f32}, 8, 2, 2, dtypes.Float64, nil,
			"Reduce is Float32 and attention is in Float64: leave Reduce unset"},
		{sequence.Group{Ring: "rings"}, 8, 2, 2, f32, nil, `the mesh has no axis "rings"`},
		{ring, 0, 2, 2, f32, nil, "the number of tokens is 0: choose at least 1"},
		{ring, 9, 2, 2, f32, nil, "want (B,5,H,D), (B,5,K,D) and (B,5,K,E) for a device's part of 9 tokens"},
		{ulysses, 8, 4, 1, f32, nil, "4 query heads and 1 key/value heads, which 2 devices cannot exchange evenly"},
		{ring, 8, 2, 2, f32, func(g *graph.Graph, o *flash.Options) { o.QueryPositions = graph.Zeros(g, positions) },
			"the mask has positions or segments: leave them nil"},
		{ring, 8, 3, 2, f32, nil, "3 query heads are not a multiple of 2 key heads"},
		{ring, 8, 2, 2, f32, func(_ *graph.Graph, o *flash.Options) { o.Implementation = flash.CuDNN },
			"gives no partial results"},
	} {
		p, err := xla.Compile(mesh, func(q, k *graph.Node) *graph.Node {
			o := flash.Causal()
			if c.with != nil {
				c.with(q.Graph(), &o)
			}
			return c.group.Attention(q, k, k, c.tokens, o)
		}, xla.In(xla.Shard(1, "ring")).Gives(xla.Shard(1, "ring")))
		if err != nil {
			t.Fatal(err)
		}
		of := func(heads int) *tensors.Tensor { return tensors.FromShape(shapes.Make(c.dtype, 1, 8, heads, 4)) }
		if err := p.Prepare(of(c.heads), of(c.kv)); err == nil || !strings.Contains(fmt.Sprint(err), c.want) {
			t.Errorf("%+v: error %v, want %q", c.group, err, c.want)
		}
		p.Close()
	}
	p, err := xla.Compile(mesh, func(x *graph.Node) *graph.Node { return ring.Take(x, 1) },
		xla.In(xla.Replicated()).Gives(xla.Shard(0, "ring")))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Call([]float32{1, 2}); err == nil || !strings.Contains(err.Error(), "and no axis 1") {
		t.Errorf("taking tokens of no axis: %v", err)
	}
}

func TestAxes(t *testing.T) {
	for want, s := range map[string]sequence.Group{"[]": {}, "[r]": {Ring: "r"}, "[u]": {Ulysses: "u"},
		"[r u]": {Ring: "r", Ulysses: "u"}} {
		if got := fmt.Sprint(s.Axes()); got != want {
			t.Errorf("axes %s, want %s", got, want)
		}
	}
}
