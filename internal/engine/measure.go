package engine

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gomlx/compute/shapes"
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
