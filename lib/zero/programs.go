package zero

import (
	"fmt"
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/internal/rank"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/xla"
)

// programs are those of an engine for a number of shards.
type programs struct {
	layout
	entries []entry
	blocks  []block
	// add adds an array to one that is donated.
	add *xla.Portable
	// update makes the new shards of the units, in the type to compute in; those of masters, if there are any; the rest of
	// the state; and the metrics. It takes the masters, or else the weights as a rank holds them, the rest, the gradients
	// as a rank holds them, the loss, one over the number of summands, and the rank's place.
	update *rank.Phases
	// cast makes of a shard of a unit, in the type that parameters are kept in, that in the type to compute in.
	cast *xla.Portable
}

// block is a block's programs. The forward pass takes the whole units of its parameters, the input and the noise, and
// returns the output and what is kept; the last block has none. The backward pass takes the gradient of the output (in the last block
// the targets and the states of the loss scaling), the same operands, and what was kept; it returns the loss (of the last
// block), the gradient of the input (but not in the first block) and those of the units, whole.
type block struct {
	chain.Block
	forward, backward *xla.Portable
}

// pattern tells blocks with the same programs from others.
func (l *layout) pattern(model chain.Model, i int) string {
	text := fmt.Sprint(model.Twins()[i], len(l.uses[i]))
	for _, m := range l.params[i] {
		u := l.units[m.unit]
		text += fmt.Sprint(" ", slices.Index(l.uses[i], m.unit), u.size, u.offsets[m.index], u.lengths[m.index])
	}
	return text
}

func (e *Engine) compile(shards int) (*programs, error) {
	p := &programs{layout: newLayout(e.model, e.recipe.Optimizer(), e.model.Params().As(e.policy.Params), shards)}
	var err error
	if p.entries, err = entries(e.recipe, p.layout); err != nil {
		return nil, err
	}
	made := map[string]block{}
	for i, b := range e.model.Blocks {
		key := p.pattern(e.model, i)
		own, ok := made[key]
		if !ok {
			if i < len(e.model.Blocks)-1 {
				if own.forward, err = e.device(e.forward(p, i)); err != nil {
					return nil, err
				}
			}
			if own.backward, err = e.device(e.backward(p, i)); err != nil {
				return nil, err
			}
			made[key] = own
		}
		own.Block = b
		p.blocks = append(p.blocks, own)
	}
	if p.add, err = e.device(func(in []*graph.Node) []*graph.Node { return []*graph.Node{graph.Add(in[0], in[1])} }, 0); err != nil {
		return nil, err
	}
	if p.cast, err = e.device(func(in []*graph.Node) []*graph.Node { return precision.Cast(in, e.policy.Compute) }); err != nil {
		return nil, err
	}
	return p, e.compileUpdate(p)
}

// operands takes those of a block from the front of in.
func (e *Engine) operands(p *programs, i int, in []*graph.Node) (o chain.Operands, rest []*graph.Node) {
	units := map[int]*graph.Node{}
	for k, u := range p.uses[i] {
		units[u] = in[k]
	}
	in = in[len(p.uses[i]):]
	o.Weights, o.X, rest = p.whole(i, units), in[0], in[1:]
	if e.model.Noisy {
		o.Key, o.Row, rest = e.recipe.Key(rest[0]), rest[1], rest[2:]
	}
	return o, rest
}

func (e *Engine) forward(p *programs, i int) func(in []*graph.Node) []*graph.Node {
	return func(in []*graph.Node) []*graph.Node {
		o, _ := e.operands(p, i, in)
		y, kept := e.passes.Forward(i, o)
		return append([]*graph.Node{y}, kept...)
	}
}

func (e *Engine) backward(p *programs, i int) func(in []*graph.Node) []*graph.Node {
	return func(in []*graph.Node) (out []*graph.Node) {
		above, in := in[0], in[1:]
		var scaling []*graph.Node
		if i == len(e.model.Blocks)-1 {
			n := len(e.policy.Scaling.States())
			scaling, in = in[:n], in[n:]
		}
		o, kept := e.operands(p, i, in)
		g := e.passes.Backward(i, o, kept, above, scaling)
		for _, x := range []*graph.Node{g.Loss, g.X} {
			if x != nil {
				out = append(out, x)
			}
		}
		rows := p.rows(i, precision.Cast(g.Weights, e.policy.Reduce))
		for _, u := range p.uses[i] {
			out = append(out, rows[u])
		}
		if len(out) == 0 {
			return []*graph.Node{graph.Const(above.Graph(), float32(0))}
		}
		return out
	}
}

// compileUpdate makes the phases of the update, on the device or in the host's memory.
func (e *Engine) compileUpdate(p *programs) (err error) {
	units := len(p.units)
	matrix := e.options.Stage < 3 && !e.masters() // weights are whole
	var inputs []shapes.Shape
	for _, u := range p.units {
		dims := []int{u.size}
		if matrix {
			dims = []int{p.shards, u.size}
		}
		inputs = append(inputs, shapes.Make(e.policy.Params, dims...))
	}
	for _, s := range p.entries[len(p.tree):] {
		inputs = append(inputs, s.part.Shape)
	}
	state := len(inputs)
	for _, u := range p.units {
		dims := []int{u.size}
		if e.options.Stage == 1 && !e.options.Offload {
			dims = []int{p.shards, u.size}
		}
		inputs = append(inputs, shapes.Make(e.policy.Reduce, dims...))
	}
	inputs = append(inputs, shapes.Make(dtypes.Float32), shapes.Make(dtypes.Float32), shapes.Make(dtypes.Int32))

	fn := func(in []*graph.Node, sum func(*graph.Node) *graph.Node) []*graph.Node {
		place := in[len(in)-1]
		row := func(all []*graph.Node) []*graph.Node { // the rank's own, where there are all
			own := slices.Clone(all)
			for i, x := range all {
				if x.Rank() == 2 {
					zero := graph.ScalarZero(x.Graph(), dtypes.Int32)
					own[i] = graph.Reshape(graph.DynamicSlice(x, []*graph.Node{place, zero}, []int{1, x.Shape().Dim(1)}), x.Shape().Dim(1))
				}
			}
			return own
		}
		kept, rest, metrics := p.layout.update(e.recipe, shardUpdate{
			kept: row(in[:units]), rest: in[units:state], grads: row(in[state : state+units]),
			loss: in[state+units], factor: in[state+units+1], place: place, sum: sum})
		out := precision.Cast(kept, e.policy.Compute)
		if e.masters() {
			out = append(out, kept...)
		}
		return append(append(out, rest...), metrics)
	}
	donated := make([]int, 0, state)
	for i := range state {
		if i >= units || !matrix {
			donated = append(donated, i)
		}
	}
	compile := func(fn func(in []*graph.Node) []*graph.Node, donated ...int) (rank.Program, error) {
		return e.device(fn, donated...)
	}
	if e.options.Offload {
		compile, donated = e.hostProgram, nil
	}
	p.update, err = rank.NewPhases(graph.NewGraph(e.backend, ""), compile, fn, inputs, donated...)
	return err
}
