package ddp_test

import (
	"context"
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
)

// deep is many equal layers, each of which computes for some milliseconds.
func deep(layers, width int) chain.Model {
	m := chain.Model{Criterion: func(y, targets *graph.Node) *graph.Node {
		return graph.ReduceAllMean(graph.Square(graph.Sub(y, targets)))
	}}
	for i := range layers {
		name := fmt.Sprint("h", i)
		tree := params.Tree{params.New(name+".w", dtypes.Float32, width, width)}
		m.Blocks = append(m.Blocks, chain.Block{Name: name, Kind: "h", Params: tree, Apply: func(p params.Nodes, x, _, _ *graph.Node) *graph.Node {
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

// traced makes three steps over a link, and returns the spans of the last.
func traced(t *testing.T, e *ddp.Engine, recorder *trace.Recorder, rows, width int, link group.Link) []trace.Span {
	t.Helper()
	recorder.Take()
	batch := tensors.FromFlatDataAndDimensions(make([]float32, rows*width), rows, width)
	if err := group.Run(context.Background(), 2, func(ctx context.Context, inner group.Group) error {
		g, err := group.Slow(inner, link)
		if err != nil {
			return err
		}
		rank, err := e.Join(ctx, g, g.Rank())
		if err != nil {
			return err
		}
		for range 3 {
			if err := group.Barrier(ctx, inner); err != nil {
				return err
			}
			if g.Rank() == 0 {
				recorder.Take()
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
	return recorder.Trace().Spans
}

// TestOverlap measures how much of the communication runs while the rank computes, on a link that takes a third of the time of the
// backward pass, as measured without it: overlapped, at least 80% of it, since only the last block's can come after the
// backward pass; naively, none. The machine may be busy, so the best of a few tries counts.
func TestOverlap(t *testing.T) {
	const layers, width, rows = 20, 256, 512
	backend := devicetest.Open(t, 2)
	recorder := trace.New()
	engine := func(o ddp.Options) *ddp.Engine {
		o.Trace = recorder
		return newEngine(t, backend, train.Recipe{Model: deep(layers, width), Rule: optim.SGD(0.1)}, o)
	}
	forms := map[ddp.Sync]*ddp.Engine{ddp.Naive: engine(ddp.Options{Sync: ddp.Naive}), ddp.Overlap: engine(ddp.Options{Sync: ddp.Overlap}),
		ddp.Bucketed: engine(ddp.Options{BucketBytes: 4 * width * width})}
	hidden := map[ddp.Sync]float64{}
	for try := 0; try < 5 && !(hidden[ddp.Overlap] >= 0.8 && hidden[ddp.Bucketed] >= 0.8); try++ {
		var backward time.Duration
		for _, s := range trace.Of(traced(t, forms[ddp.Naive], recorder, rows, width, group.Link{}), 0, trace.Compute) {
			if s.Name != "update" {
				backward += (s.End - s.Start) * 2 / 3 // a backward pass has twice the products of a forward pass
			}
		}
		gradients := float64(4 * layers * width * width) // of which an all-reduce of two sends each rank as much
		link := group.Link{Bandwidth: gradients / (backward.Seconds() / 3)}
		for form, e := range forms {
			spans := traced(t, e, recorder, rows, width, link)
			share := trace.Overlap(trace.Of(spans, 0, trace.Reduce), trace.Of(spans, 0, trace.Compute))
			t.Logf("%s: %.0f%% of the communication hidden, with a backward pass of about %v", form, 100*share, backward)
			if form == ddp.Naive && share != 0 {
				t.Errorf("naive: %.2f hidden", share)
			}
			hidden[form] = max(hidden[form], share)
		}
	}
	for _, form := range []ddp.Sync{ddp.Overlap, ddp.Bucketed} {
		if hidden[form] < 0.8 {
			t.Errorf("%s: %.2f of the communication hidden, want at least 0.8", form, hidden[form])
		}
	}
}
