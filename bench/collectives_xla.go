package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/xla"
)

// compiled is a program with its inputs on the devices.
type compiled struct {
	mesh    *xla.Mesh
	program *xla.Program
	inputs  []any
	donates bool // the results replace the inputs
	slow    bool // a call takes so long that it needs no warm-up
}

// call makes one call and returns the results, which the caller owns unless they are the next call's inputs.
func (c *compiled) call() ([]*dtensor.Tensor, error) {
	out, err := c.program.Call(c.inputs...)
	if err == nil && c.donates {
		for i, x := range out {
			c.inputs[i] = x
		}
	}
	return out, err
}

func (c *compiled) sample(calls int) (float64, error) {
	if !c.slow {
		if err := c.repeat(1); err != nil { // the first call after a pause is slow
			return 0, err
		}
	}
	begin := time.Now()
	err := c.repeat(calls)
	return milliseconds(begin, calls), err
}

func (c *compiled) repeat(calls int) error {
	for range calls {
		out, err := c.call()
		if err != nil {
			return err
		}
		if !c.donates {
			free(out)
		}
	}
	return nil
}

// put replaces the inputs.
func (c *compiled) put(lies xla.Placement, inputs ...*tensors.Tensor) error {
	c.drop()
	for _, x := range inputs {
		placed, err := c.mesh.Place(x, lies)
		if err != nil {
			return err
		}
		c.inputs = append(c.inputs, placed)
	}
	return nil
}

func (c *compiled) drop() {
	for _, x := range c.inputs {
		x.(*dtensor.Tensor).FinalizeAll()
	}
	c.inputs = nil
}

func (c *compiled) close() {
	c.drop()
	c.program.Close()
}

func free(all []*dtensor.Tensor) {
	for _, x := range all {
		x.FinalizeAll()
	}
}

// inGraph has all ranks as devices of this process. Each holds one row of a matrix.
type inGraph struct {
	compiled
	collectiveCase
	most int64 // operations in a program
}

// each is the number of operations in a case's program.
func (s *inGraph) each() int {
	const large = 8 << 20
	return int(max(1, min(s.most, large/s.Bytes)))
}

// serveXLA measures programs of n operations, or of fewer if these are large. The time of an operation includes
// its share of the call's.
func (b *collectives) serveXLA(n int64) server {
	return func(ctx context.Context) (subject, func(), error) {
		backend, err := openXLA(ctx, b.ranks)
		if err != nil {
			return nil, nil, err
		}
		mesh, err := backend.Mesh(xla.Axis("rank", b.ranks))
		return &inGraph{compiled: compiled{mesh: mesh}, most: n}, backend.Close, err
	}
}

func (s *inGraph) sample(calls int) (float64, error) {
	each := s.each()
	took, err := s.compiled.sample((calls + each - 1) / each)
	return took / float64(each), err
}

func (s *inGraph) prepare(params []byte) (_ facts, err error) {
	if err = json.Unmarshal(params, &s.collectiveCase); err != nil {
		return facts{}, err
	}
	in, out := s.counts()
	s.donates = out == 0 || in == out
	rows := slices.Repeat([]xla.Placement{xla.Shard(0, "rank")}, s.each())
	layout := xla.In(rows...).Gives(rows...)
	if s.donates {
		for i := range rows {
			layout = layout.Donates(i)
		}
	}
	if s.program, err = xla.Compile(s.mesh, func(in []*graph.Node) (out []*graph.Node) {
		for _, x := range in {
			out = append(out, s.body(x))
		}
		return out
	}, layout); err != nil {
		return facts{}, err
	}
	return facts{}, s.verify()
}

// body is the operation on a device's row.
func (s *inGraph) body(x *graph.Node) *graph.Node {
	switch s.Op {
	case "all-reduce":
		return collective.AllReduce(x, collective.Sum)
	case "reduce-scatter":
		return collective.ReduceScatter(x, collective.Sum, 1)
	case "all-gather":
		return collective.AllGather(x, 1)
	case "all-to-all":
		return collective.AllToAll(x, 1, 1)
	default:
		return collective.Broadcast(x, 0)
	}
}

// refill puts fresh inputs on the devices.
func (s *inGraph) refill() error {
	in, _ := s.counts()
	all := make([]float32, s.Ranks*in)
	for rank := range s.Ranks {
		s.fillInput(all[rank*in:(rank+1)*in], rank)
	}
	matrix := tensors.FromFlatDataAndDimensions(all, s.Ranks, in)
	return s.put(xla.Shard(0, "rank"), slices.Repeat([]*tensors.Tensor{matrix}, s.each())...)
}

// verify checks one call with fresh inputs, and puts fresh inputs in their place.
func (s *inGraph) verify() error {
	if err := s.refill(); err != nil {
		return err
	}
	out, err := s.call()
	if err != nil {
		return err
	}
	if !s.donates {
		defer free(out)
	}
	for _, x := range out {
		for rank, shard := range x.Shards() {
			got, err := xla.View[float32](shard)
			if err == nil {
				err = s.check(got, rank)
			}
			if err != nil {
				return fmt.Errorf("device %d: %w", rank, err)
			}
		}
	}
	return s.refill()
}

func (s *inGraph) finish() error {
	err := s.verify()
	s.close()
	return err
}
