package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// BlockCost is the measured cost of a block for one micro-batch.
type BlockCost struct {
	Name           string
	Took           map[step.Kind]time.Duration // shortest times of the passes; passes that compute nothing are left out
	Weights, Saved int64                       // bytes of the parameters, and of the saved activations with the input
}

// Measure runs the programs of each block's passes on one device, several times on zeros, for micro-batches of the
// given shapes. Blocks that share programs are measured once. The recipe's model must be a chain.Model.
func Measure(ctx context.Context, backend *xla.Backend, device int, r train.Recipe, inputs,
	targets shapes.Shape) ([]BlockCost, error) {
	model := r.Model.(chain.Model)
	serial, members := Serial(model, 1)
	p, err := New(backend, Spec{Recipe: r, Plans: []*step.Plan{serial}, Members: members})
	if err != nil {
		return nil, err
	}
	defer p.Close()
	mesh, err := backend.MeshFrom(device, p.Mesh...)
	if err != nil {
		return nil, err
	}
	d, o := &devices{p, mesh, device}, p.ranks[0]
	if err := p.kinds.Check(backend.Text, o.passes, inputs); err != nil {
		return nil, err
	}
	sizes, err := d.measure(o, inputs, targets, true)
	if err != nil {
		return nil, err
	}
	costs, programOf := make([]BlockCost, len(model.Blocks)), model.SharedPrograms()
	for i, b := range model.Blocks {
		of := sizes.blocks[i]
		costs[i] = BlockCost{Name: b.Name, Took: map[step.Kind]time.Duration{},
			Weights: b.Params.As(p.policy.Params).Bytes(),
			Saved:   of.x.ByteSize()}
		for _, s := range of.saved {
			costs[i].Saved += s.ByteSize()
		}
	}
	for _, plan := range []*step.Plan{serial, halved(serial)} {
		flow, err := plan.Flow(0)
		if err != nil {
			return nil, err
		}
		for _, s := range o.segments(plan, flow, false) {
			op := plan.Ranks[0][s.from]
			took := costs[op.Block].Took
			if _, ok := took[op.Kind]; ok || op.Kind == step.Update || programOf[op.Block] < op.Block {
				continue
			}
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			err := d.prepare(o, plan, flow, s, sizes, map[int]bool{}, 1)
			if err == nil && s.program != nil {
				took[op.Kind], err = d.least(o, s, sizes)
			}
			if err != nil {
				return nil, fmt.Errorf("engine: measuring %s of block %q: %w", op.Kind, model.Blocks[op.Block].Name,
					err)
			}
		}
	}
	for i, first := range programOf {
		costs[i].Took = costs[first].Took
	}
	return costs, nil
}

// least runs a segment's program several times on zeros, and returns the shortest time.
func (d *devices) least(o *own, s *segment, sizes *sizes) (took time.Duration, err error) {
	const times = 10
	var args []*dtensor.Tensor
	defer func() {
		for _, t := range args {
			if t != nil && t.Ok() {
				_ = t.FinalizeAll()
			}
		}
	}()
	for n := range times + 1 { // the first run compiles
		var in []any
		for _, x := range s.io.in {
			on, all := o.lies(x, sizes)
			for _, shape := range all {
				i := len(in)
				if n == 0 {
					args = append(args, nil)
				}
				if n == 0 || slices.Contains(s.io.donated, x) {
					if args[i], err = d.place(tensors.FromShape(o.shapeOf(x, shape, s.io)), on); err != nil {
						return 0, err
					}
				}
				in = append(in, args[i])
			}
		}
		begin := time.Now()
		out, err := s.program.Call(in...)
		if d := time.Since(begin); n > 0 && (took == 0 || d < took) {
			took = d
		}
		for _, t := range out {
			err = errors.Join(err, t.FinalizeAll())
		}
		if err != nil {
			return 0, err
		}
	}
	return took, nil
}

// sizes are the shapes, on a device, of what is passed between segments.
type sizes struct {
	targets shapes.Shape
	blocks  []blockSizes
	idle    map[string]bool // parameters that the loss does not depend on
}

type blockSizes struct {
	x, y              shapes.Shape // its input and output
	saved, forWeights []shapes.Shape
	uses              []bool // by parameter, and for the input last: whether the output depends on it
}

// measure builds the graphs of the blocks to find the shapes of their results, for micro-batches with the given shapes
// on a device. Blocks that share programs are built once.
func (d *devices) measure(o *own, inputs, targets shapes.Shape, split bool) (*sizes, error) {
	s := &sizes{targets: targets, idle: map[string]bool{}}
	x, made, programOf := inputs, map[string]blockSizes{}, o.model.SharedPrograms()
	tree := o.passes.Model
	for i := range tree.Blocks {
		key := fmt.Sprint(programOf[i], x)
		of, ok := made[key]
		if !ok {
			var err error
			if of, err = d.measureBlock(o, i, x, targets, split); err != nil {
				return nil, fmt.Errorf("engine: block %q, of an input of shape %s: %w", tree.Blocks[i].Name, x, err)
			}
			made[key] = of
		}
		s.blocks = append(s.blocks, of)
		x = of.y
	}
	needed, more := map[string]bool{}, true
	for i, of := range slices.Backward(s.blocks) {
		list := tree.Blocks[i].Params
		for k, spec := range list {
			needed[spec.Name] = needed[spec.Name] || more && of.uses[k]
		}
		more = more && of.uses[len(list)]
	}
	for name, is := range needed {
		if !is {
			s.idle[name] = true
		}
	}
	return s, nil
}

func (d *devices) measureBlock(o *own, i int, x, targets shapes.Shape, split bool) (of blockSizes, err error) {
	var in []shapes.Shape
	for _, spec := range o.passes.Model.Blocks[i].Params.As(o.policy.Compute) {
		in = append(in, spec.Shape)
	}
	n, kept, last := len(in), 0, i == len(o.passes.Model.Blocks)-1
	if in = append(in, x); o.model.Noisy {
		in = append(in, shapes.Make(dtypes.Int32), shapes.Make(dtypes.Uint32))
	}
	if last {
		in = append(in, targets)
	}
	out, err := d.mesh.Shapes(func(in []*graph.Node) []*graph.Node {
		g := in[0].Graph()
		o.declare(g)
		c := chain.Operands{Weights: in[:n], X: in[n]}
		if o.model.Noisy {
			c.Key, c.Row = o.Recipe.Key(in[n+1]), in[n+2]
		}
		if last {
			c.Targets = in[len(in)-1]
		}
		y, saved := o.passes.Forward(i, c)
		of.uses, kept = reached(y, in[:n+1]), len(saved)
		out := append([]*graph.Node{y}, saved...)
		if split && i > 0 {
			var scaling []*graph.Node
			for _, s := range o.policy.Scaling.States() {
				scaling = append(scaling, graph.Zeros(g, s.Shape))
			}
			_, forWeights := o.passes.BackwardInput(i, c, saved, graph.ZerosLike(y), scaling)
			out = append(out, forWeights...)
		}
		return out
	}, in...)
	if err == nil {
		of.x, of.y, of.saved, of.forWeights = x, out[0], out[1:1+kept], out[1+kept:]
	}
	return of, err
}

// reached reports for each node whether from depends on it.
func reached(from *graph.Node, nodes []*graph.Node) (all []bool) {
	seen := map[*graph.Node]bool{nil: true}
	var visit func(n *graph.Node)
	visit = func(n *graph.Node) {
		if !seen[n] {
			seen[n] = true
			for _, in := range n.Inputs() {
				visit(in)
			}
		}
	}
	visit(from)
	for _, n := range nodes {
		all = append(all, seen[n])
	}
	return all
}
