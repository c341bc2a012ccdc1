package flash

import (
	"fmt"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
)

// Mask says which keys a query sees: those that every one of its conditions allows. Blocks of keys that no query of a
// block sees are not computed.
type Mask struct {
	// Causal: a query sees the keys at its own position and before.
	Causal bool

	// Window, where it is not 0: a query sees keys less than Window positions away; with Causal, itself and the
	// Window−1 before it (sliding-window attention; Beltagy et al. 2020, arXiv:2004.05150, §3.1).
	Window int

	// Positions of the queries, (T), and the keys, (S), int32. Where they are nil, those of the keys are 0 to S−1 and
	// those of the queries S−T to S−1: the queries are the last tokens, as behind a cache of keys. Any order is right,
	// but blocks are skipped by the least and the greatest position in them.
	QueryPositions, KeyPositions *graph.Node

	// Segments of the queries, (B,T), and the keys, (B,S), int32, both or none: a query sees keys of its own segment.
	// So sequences of different lengths are packed in one row, or padded with a segment of padding. Positions count
	// through the row, not from each segment's start, which is the same for Causal and Window.
	QuerySegments, KeySegments *graph.Node
}

// Causal returns the options of language models: a token sees itself and those before.
func Causal() Options { return Options{Mask: Mask{Causal: true}} }

// everything reports whether every query sees every key.
func (m Mask) everything() bool { return !m.Causal && m.Window == 0 && m.QuerySegments == nil }

// extras are the mask's nodes, in the order that with takes them back. One not there is nil.
func (m *Mask) extras() []**graph.Node {
	return []**graph.Node{&m.QueryPositions, &m.KeyPositions, &m.QuerySegments, &m.KeySegments}
}

// inputs are all nodes that the result depends on: q, k, v, and what the mask has.
func (c call) inputs() []*graph.Node {
	in := []*graph.Node{c.q, c.k, c.v}
	for _, extra := range c.extras() {
		if *extra != nil {
			in = append(in, *extra)
		}
	}
	return in
}

// with is the same call of other nodes, in the order of inputs.
func (c call) with(in []*graph.Node) call {
	c.q, c.k, c.v = in[0], in[1], in[2]
	next := 3
	for _, extra := range c.extras() {
		if *extra != nil {
			*extra = in[next]
			next++
		}
	}
	return c
}

// stopped is the same call with no gradients.
func (c call) stopped() call {
	in := c.inputs()
	for i, x := range in {
		in[i] = graph.StopGradient(x)
	}
	return c.with(in)
}

func (c call) outShape(of dtypes.DType) shapes.Shape {
	return shapes.Make(of, c.batch(), c.queries(), c.heads(), c.e())
}

func (c call) statShape() shapes.Shape {
	return shapes.Make(c.statistics(), c.batch(), c.queries(), c.heads())
}

func (c call) check() error {
	for _, x := range []*graph.Node{c.q, c.k, c.v} {
		if x.Rank() != 4 || x.DType() != c.q.DType() {
			return fmt.Errorf("flash: queries are %s, keys %s, values %s: want (B,T,H,D), (B,S,K,D) and (B,S,K,E) of one type",
				c.q.Shape(), c.k.Shape(), c.v.Shape())
		}
	}
	b, s, kv := c.batch(), c.keys(), c.keyHeads()
	if c.k.Shape().Dim(0) != b || c.v.Shape().Dim(0) != b || c.v.Shape().Dim(1) != s || c.v.Shape().Dim(2) != kv ||
		c.k.Shape().Dim(3) != c.d() {
		return fmt.Errorf("flash: queries are %s, keys %s, values %s: want (B,T,H,D), (B,S,K,D) and (B,S,K,E)",
			c.q.Shape(), c.k.Shape(), c.v.Shape())
	}
	for _, x := range []*graph.Node{c.q, c.k, c.v} {
		if x.Shape().Size() == 0 {
			return fmt.Errorf("flash: queries are %s, keys %s, values %s: none may be empty", c.q.Shape(), c.k.Shape(),
				c.v.Shape())
		}
	}
	if c.heads()%kv != 0 {
		return fmt.Errorf("flash: %d query heads are no multiple of %d key heads: each key head serves equally many",
			c.heads(), kv)
	}
	switch c.q.DType() {
	case dtypes.Float32, dtypes.Float64, dtypes.BFloat16, dtypes.Float16:
	default:
		return fmt.Errorf("flash: queries are %s: want float32, float64, bfloat16 or float16", c.q.DType())
	}
	if (c.QuerySegments == nil) != (c.KeySegments == nil) {
		return fmt.Errorf("flash: segments of the queries or of the keys alone: give both or none")
	}
	wants := [][]int{{c.queries()}, {s}, {b, c.queries()}, {b, s}}
	for i, extra := range c.extras() {
		if want := shapes.Make(dtypes.Int32, wants[i]...); *extra != nil && !(*extra).Shape().Equal(want) {
			what := []string{"query positions", "key positions", "query segments", "key segments"}[i]
			return fmt.Errorf("flash: %s are %s: want %s", what, (*extra).Shape(), want)
		}
	}
	if err := c.Options.Validate(); err != nil {
		return err
	}
	return c.checkEngine()
}

// Validate returns an error for options that no attention can have.
func (o Options) Validate() error {
	if o.Window < 0 || int64(o.Window) > 1<<30 {
		return fmt.Errorf("flash: a window of %d: give a number of positions up to 2³⁰, or 0 for none", o.Window)
	}
	if !(o.Scale >= 0 && o.Scale <= 1e30) {
		return fmt.Errorf("flash: the scale is %g: give a positive number, or 0 for 1/√D", o.Scale)
	}
	if o.Block.Queries < 0 || o.Block.Keys < 0 {
		return fmt.Errorf("flash: blocks of %d queries and %d keys: give positive numbers, or 0 for the usual ones",
			o.Block.Queries, o.Block.Keys)
	}
	return o.Engine.Validate()
}
