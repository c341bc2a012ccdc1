package residual_test

import (
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/xla"
	"github.com/shardbook/shardbook/lib/zero/residual"
)

type nodes = []*graph.Node

// sizes are the bytes of a Transformer block, as a rank drives it.
type sizes struct {
	forward, backward int64 // what XLA's programs of the two passes need while they run
	checkpoint        int64 // the block's input, which its output is to the next
	gradients         int64 // of the parameters
}

// measured are the sizes of a block of a small GPT.
func measured(t *testing.T) (s sizes) {
	t.Helper()
	const rows = 4
	config := gpt.Config{Layers: 1, Width: 16, Heads: 2, Seq: 8, Vocab: 32}
	model, err := config.Chain()
	if err != nil {
		t.Fatal(err)
	}
	policy, err := precision.ParsePolicy("fp32")
	if err != nil {
		t.Fatal(err)
	}
	passes, tree := chain.Passes{Model: model, Precision: policy}, model.Blocks[1].Params
	x := shapes.Make(dtypes.Float32, rows, config.Seq, config.Width)
	args := []any{tensors.FromShape(x), tensors.FromShape(x)}
	for _, p := range tree {
		args = append(args, tensors.FromShape(p.Shape))
		s.gradients += p.Shape.ByteSize()
	}
	s.checkpoint = x.ByteSize()
	temporary := func(pass func(in nodes) nodes) int64 {
		p, err := xla.CompilePortable(devicetest.One(), pass)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		if _, err := p.Call(0, args...); err != nil {
			t.Fatal(err)
		}
		m, err := p.Memory()
		if err != nil {
			t.Fatal(err)
		}
		return m.Temporary
	}
	s.forward = temporary(func(in nodes) nodes {
		y, _ := passes.Forward(1, chain.Operands{X: in[0], Weights: in[2:]})
		return nodes{y}
	})
	s.backward = temporary(func(in nodes) nodes {
		g := passes.Backward(1, chain.Operands{X: in[0], Weights: in[2:]}, nil, in[1], nil)
		return append(nodes{g.X}, g.Weights...)
	})
	return s
}

// step is what a training step of so many blocks allocates and frees.
func (s sizes) step(blocks int) (events []residual.Event) {
	id := 0
	allocate := func(bytes int64, long bool) int {
		id++
		events = append(events, residual.Event{ID: id, Bytes: bytes, Long: long})
		return id
	}
	free := func(id int) { events = append(events, residual.Event{ID: id, Free: true}) }
	checkpoints := []int{allocate(s.checkpoint, true)}
	for range blocks {
		temporary := allocate(s.forward, false)
		checkpoints = append(checkpoints, allocate(s.checkpoint, true))
		free(temporary)
	}
	above := allocate(s.checkpoint, false)
	for i := blocks - 1; i >= 0; i-- {
		temporary := allocate(s.backward, false)
		next := allocate(s.checkpoint, false)
		allocate(s.gradients, true)
		free(temporary)
		free(above)
		free(checkpoints[i])
		above = next
	}
	return events
}

// Where a region for checkpoints and gradients leaves just enough for a training step, the step without a region finds
// enough that is free, but not in one piece.
func TestRegionsForATrainingStep(t *testing.T) {
	s := measured(t)
	const blocks = 8
	plain := s.step(blocks)
	regions, err := residual.WithRegion(plain)
	if err != nil {
		t.Fatal(err)
	}
	replay := func(events []residual.Event, capacity int64) residual.Report {
		r, err := residual.Replay(events, capacity)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	need, without := replay(regions, 0), replay(plain, 0)
	t.Logf("%+v: without a region %+v, with one %+v", s, without, need)
	if r := replay(regions, need.Highest); r.Failed {
		t.Errorf("with a region: %+v", r)
	}
	if r := replay(plain, need.Highest); !r.Fragmented() {
		t.Errorf("without a region in %d bytes: %+v, want an allocation that fails for want of one piece", need.Highest, r)
	}
	if r := replay(plain, without.Highest); r.Failed || without.Highest <= need.Highest {
		t.Errorf("without a region in %d bytes, where with one %d do: %+v", without.Highest, need.Highest, r)
	}
}
