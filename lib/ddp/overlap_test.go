package ddp_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// deep is many equal layers.
func deep(layers, width int) chain.Model {
	m := chain.Model{Criterion: func(y, targets *graph.Node) *graph.Node {
		return graph.ReduceAllMean(graph.Square(graph.Sub(y, targets)))
	}}
	for i := range layers {
		name := fmt.Sprint("h", i)
		tree := params.Tree{params.New(name+".w", dtypes.Float32, width, width)}
		m.Blocks = append(m.Blocks, chain.Block{Name: name, Kind: "h", Params: tree,
			Apply: func(p params.Nodes, x, _, _ *graph.Node) *graph.Node {
				return graph.Tanh(graph.Dot(x, p.Get(name+".w")).Product())
			}})
	}
	m.Initial = func() ([]*tensors.Tensor, error) {
		values, err := params.Zeros(m.Params())
		for _, v := range values {
			v.MustMutableFlatData(func(flat any) {
				for i := range flat.([]float32) {
					flat.([]float32)[i] = float32(i%7-3) / float32(width)
				}
			})
		}
		return values, err
	}
	return m
}

// traced makes three steps of two ranks, each with its own view of the group, and returns the spans of the last.
func traced(t *testing.T, backend *xla.Backend, o ddp.Options, rows int, m chain.Model,
	view func(g group.Group) (group.Group, error)) []trace.Span {
	t.Helper()
	width := m.Blocks[0].Params[0].Shape.Dim(0)
	batch := tensors.FromFlatDataAndDimensions(make([]float32, rows*width), rows, width)
	if err := group.Run(context.Background(), 2, func(ctx context.Context, inner group.Group) error {
		g, err := view(inner)
		if err != nil {
			return err
		}
		rank, err := ddp.Join(ctx, g, backend, g.Rank(), train.Recipe{Model: m, Optimizer: optim.SGD(0.1)}, o)
		if err != nil {
			return err
		}
		for range 3 {
			if err := group.Barrier(ctx, inner); err != nil {
				return err
			}
			if g.Rank() == 0 {
				o.Trace.Take()
			}
			if err := group.Barrier(ctx, inner); err != nil {
				return err
			}
			if _, err := rank.Step(ctx, batch, batch); err != nil {
				return err
			}
		}
		return rank.Close()
	}); err != nil {
		t.Fatal(err)
	}
	return o.Trace.Trace().Spans
}

// TestOverlap holds up each layer's all-reduce until the next backward pass is done: with Overlap a step ends all the
// same, and all communication but the last layer's overlaps the passes. With Naive, over a slow link, none does.
func TestOverlap(t *testing.T) {
	const layers, width, rows = 6, 16, 8
	backend := devicetest.Open(t, 2)
	m := deep(layers, width)
	slow := func(g group.Group) (group.Group, error) { return group.Slow(g, group.Link{Latency: time.Millisecond}) }
	naive := traced(t, backend, ddp.Options{Sync: ddp.Naive, Trace: trace.New()}, rows, m, slow)
	for rank := range 2 {
		reduce := trace.Of(naive, rank, trace.Reduce)
		if hidden := trace.Overlap(reduce, trace.Of(naive, rank, trace.Compute)); len(reduce) != layers || hidden != 0 {
			t.Errorf("naive: rank %d: %.2f of %d reductions hidden", rank, hidden, len(reduce))
		}
	}
	for _, o := range []ddp.Options{{Sync: ddp.Overlap}, {BucketBytes: 4 * width * width}} {
		o.Trace = trace.New()
		spans := traced(t, backend, o, rows, m, func(g group.Group) (group.Group, error) {
			return &heldUp{Group: g, recorder: o.Trace, layers: layers}, nil
		})
		for rank := range 2 {
			compute, reduce := trace.Of(spans, rank, trace.Compute), trace.Of(spans, rank, trace.Reduce)
			if len(reduce) != layers || len(compute) != 2*layers+1 { // two passes of each, and the update
				t.Fatalf("%q: rank %d: %d reductions and %d spans of computing, want %d and %d",
					o.Sync, rank, len(reduce), len(compute), layers, 2*layers+1)
			}
			for n, s := range reduce[:layers-1] {
				if s.End < compute[layers+n+1].End {
					t.Errorf("%q: rank %d: the reduction of %s was not held up", o.Sync, rank, s.Name)
				}
			}
		}
	}
}

// heldUp is a rank's view of a group in which each layer's all-reduce waits for the backward pass of the next one that
// is computed.
type heldUp struct {
	group.Group
	recorder *trace.Recorder
	layers   int
	reduced  int
}

func (h *heldUp) Do(ctx context.Context, call group.Call) error {
	if call.Kind == group.KindAllReduce && call.Type == group.Float32 { // of gradients, not of losses
		passes := h.layers + min(h.layers, h.reduced%h.layers+2)
		h.reduced++
		done := func() int { return len(trace.Of(h.recorder.Spans(), h.Rank(), trace.Compute)) }
		for begun := time.Now(); done() < passes; time.Sleep(100 * time.Microsecond) {
			if time.Since(begun) > time.Minute {
				return errors.New("computing waits for it")
			}
		}
	}
	return h.Group.Do(ctx, call)
}
