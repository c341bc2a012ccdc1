package sequence_test

import (
	"slices"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/flash"
	"github.com/shardbook/shardbook/lib/sequence"
	"github.com/shardbook/shardbook/lib/xla"
)

// TestBetween cuts the program of a ring between programs: the next keys and values are sent while the program of a hop
// runs, which does not use them, and no rank has more than two ranks' keys at once. (Packages that run such programs
// test their results.)
func TestBetween(t *testing.T) {
	const ranks, tokens, heads, width = 4, 32, 2, 8
	mesh, err := devicetest.One().Mesh(xla.Axis("data", 1))
	if err != nil {
		t.Fatal(err)
	}
	own := shapes.Make(dtypes.Float32, 1, tokens/ranks, heads, width)
	attend := func(in []*graph.Node) []*graph.Node {
		collective.Between(in[0].Graph(), "ring", ranks, in[3])
		g := sequence.Group{Ring: "ring", Placement: sequence.Zigzag}
		return []*graph.Node{g.Attention(in[0], in[1], in[2], tokens, flash.Causal())}
	}
	cut, err := xla.NewSegments(mesh, attend, own, own, own, shapes.Make(dtypes.Int32))
	if err != nil {
		t.Fatal(err)
	}
	layer := sequence.Layer{Batch: 1, Tokens: tokens, Heads: heads, KeyHeads: heads, Width: width, Type: dtypes.Float32}
	there, _ := sequence.Group{Ring: "ring"}.Traffic(layer, ranks, 1)
	var bytes int64
	for n, s := range cut.Shifts {
		bytes += s.Shape.ByteSize()
		received := func(k int) bool {
			return slices.Contains(cut.Programs[k].In, xla.Ref{Kind: xla.RefReceived, Number: n})
		}
		if k := s.Before; received(k) || !received(k+1) || cut.Takes(k+2, xla.Ref{Kind: xla.RefReceived, Number: n}) {
			t.Errorf("what shift %d receives is not used by program %d alone: %+v", n, k+1, cut.Programs)
		}
		if of := s.Of; n > 0 && of != (xla.Ref{Kind: xla.RefReceived, Number: n - 1}) {
			t.Errorf("shift %d is of %v", n, of)
		}
	}
	if len(cut.Shifts) != there[0].Count || bytes != there[0].Bytes {
		t.Errorf("%d shifts of %d bytes, want %d of %d", len(cut.Shifts), bytes, there[0].Count, there[0].Bytes)
	}
	gathers := func(in []*graph.Node) []*graph.Node {
		collective.Between(in[0].Graph(), "ring", ranks, in[3])
		g := sequence.Group{Ring: "ring", Gather: true}
		return []*graph.Node{g.Attention(in[0], in[1], in[2], tokens, flash.Causal())}
	}
	if _, err = xla.NewSegments(mesh, gathers, own, own, own, shapes.Make(dtypes.Int32)); err == nil {
		t.Error("Gather along an axis between programs: no error")
	}
}
