package engine

import (
	"context"
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
		i := 0
		for _, x := range s.io.in {
			on, all := o.lies(x, sizes)
			for _, shape := range all {
				if n == 0 {
					args = append(args, nil)
				}
				if n == 0 || slices.Contains(s.io.donated, x) {
					if args[i], err = d.place(tensors.FromShape(o.shapeOf(x, shape, s.io)), on); err != nil {
						return 0, err
					}
				}
				i++
			}
		}
		in := make([]any, len(args))
		for i, t := range args {
			in[i] = t
		}
		begin := time.Now()
		out, err := s.program.Call(in...)
		if d := time.Since(begin); n > 0 && (took == 0 || d < took) {
			took = d
		}
		if err != nil {
			return 0, err
		}
		for _, t := range out {
			if err := t.FinalizeAll(); err != nil {
				return 0, err
			}
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
	x                 shapes.Shape // its input
	saved, forWeights []shapes.Shape
	uses              []bool // by parameter, and for the input last: whether the output depends on it
}

// measure builds the graphs of the blocks to find the shapes of their results, for micro-batches with the given shapes
// on a device. Blocks that share programs are built once.
func (d *devices) measure(o *own, inputs, targets shapes.Shape, split bool) (*sizes, error) {
	s := &sizes{targets: targets}
	x := inputs
	made := map[string]blockSizes{}
	outs := map[string]shapes.Shape{}
	programOf := o.model.SharedPrograms()
	tree := o.passes.Model
	for i, b := range tree.Blocks {
		key := fmt.Sprint(programOf[i], x)
		of, ok := made[key]
		if !ok {
			var in []shapes.Shape
			for _, spec := range b.Params {
				in = append(in, shapes.Make(o.policy.Compute, spec.Shape.Dimensions...))
			}
			n := len(in)
			in = append(in, x)
			if o.model.Noisy {
				in = append(in, shapes.Make(dtypes.Int32), shapes.Make(dtypes.Uint32))
			}
			last := i == len(tree.Blocks)-1
			if last {
				in = append(in, targets)
			}
			operands := func(in []*graph.Node) (c chain.Operands, rest []*graph.Node) {
				c.Weights, c.X, rest = in[:n], in[n], in[n+1:]
				if o.model.Noisy {
					c.Key, c.Row, rest = o.Recipe.Key(rest[0]), rest[1], rest[2:]
				}
				if last {
					c.Targets, rest = rest[0], rest[1:]
				}
				return c, rest
			}
			var uses []bool
			out, err := d.mesh.Shapes(func(in []*graph.Node) []*graph.Node {
				o.onRing(in[0].Graph())
				c, _ := operands(in)
				y, saved := o.passes.Forward(i, c)
				uses = reached(y, in[:n+1])
				return append([]*graph.Node{y}, saved...)
			}, in...)
			if err != nil {
				return nil, fmt.Errorf("engine: block %q, of an input of shape %s: %w", b.Name, x, err)
			}
			of = blockSizes{x: x, saved: out[1:], uses: uses}
			outs[key] = out[0]
			if split && i > 0 {
				more := slices.Clone(of.saved)
				if last {
					for _, s := range o.policy.Scaling.States() {
						more = append(more, s.Shape)
					}
				} else {
					more = append(more, out[0])
				}
				if out, err = d.mesh.Shapes(func(in []*graph.Node) []*graph.Node {
					o.onRing(in[0].Graph())
					c, rest := operands(in)
					saved, rest := rest[:len(of.saved)], rest[len(of.saved):]
					var outGrad *graph.Node
					scaling := rest
					if !last {
						outGrad, scaling = rest[0], nil
					}
					x, forWeights := o.passes.BackwardInput(i, c, saved, outGrad, scaling)
					return append([]*graph.Node{x}, forWeights...)
				}, append(in, more...)...); err != nil {
					return nil, fmt.Errorf("engine: the gradient of block %q: %w", b.Name, err)
				}
				of.forWeights = out[1:]
			}
			made[key] = of
		}
		s.blocks = append(s.blocks, of)
		x = outs[key]
	}
	s.idle = map[string]bool{}
	needed := map[string]bool{}
	for i, more := len(tree.Blocks)-1, true; i >= 0; i-- {
		uses, list := s.blocks[i].uses, tree.Blocks[i].Params
		for k, spec := range list {
			if s.idle[spec.Name] = true; more && uses[k] {
				needed[spec.Name] = true
			}
		}
		more = more && uses[len(list)]
	}
	for name := range needed {
		delete(s.idle, name)
	}
	return s, nil
}

// reached reports for each node whether from depends on it.
func reached(from *graph.Node, nodes []*graph.Node) []bool {
	seen := map[*graph.Node]bool{}
	var visit func(n *graph.Node)
	visit = func(n *graph.Node) {
		if n == nil || seen[n] {
			return
		}
		seen[n] = true
		for _, in := range n.Inputs() {
			visit(in)
		}
	}
	visit(from)
	all := make([]bool, len(nodes))
	for i, n := range nodes {
		all[i] = seen[n]
	}
	return all
}
