package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/xla"
)

// inGraph has all ranks as devices of this process. Each holds one row of a matrix.
type inGraph struct {
	mesh *xla.Mesh
	collectiveCase
	program *xla.Program
	donates bool // the input's memory becomes the result's
	held    *dtensor.Tensor
}

func (b *collectives) serveXLA(ctx context.Context) (subject, func(), error) {
	backend, err := openXLA(ctx, b.ranks)
	if err != nil {
		return nil, nil, err
	}
	mesh, err := backend.Mesh(xla.Axis("rank", b.ranks))
	return &inGraph{mesh: mesh}, backend.Close, err
}

func (s *inGraph) prepare(params []byte) (_ facts, err error) {
	if err = json.Unmarshal(params, &s.collectiveCase); err != nil {
		return facts{}, err
	}
	in, out := s.counts()
	s.donates = out == 0 || in == out
	row := xla.Shard(0, "rank")
	layout := xla.In(row).Gives(row)
	if s.donates {
		layout = layout.Donates(0)
	}
	if s.program, err = xla.Compile(s.mesh, s.body, layout); err != nil {
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

// place puts fresh inputs on the devices.
func (s *inGraph) place() (err error) {
	in, _ := s.counts()
	all := make([]float32, s.Ranks*in)
	for rank := range s.Ranks {
		s.fillInput(all[rank*in:(rank+1)*in], rank)
	}
	s.drop()
	s.held, err = s.mesh.Place(tensors.FromFlatDataAndDimensions(all, s.Ranks, in), xla.Shard(0, "rank"))
	return err
}

func (s *inGraph) drop() {
	if s.held != nil {
		s.held.FinalizeAll()
		s.held = nil
	}
}

// call makes one call and returns the result, which the caller owns unless it is
// the next call's input.
func (s *inGraph) call() (*dtensor.Tensor, error) {
	out, err := s.program.Call(s.held)
	if err != nil {
		return nil, err
	}
	if s.donates {
		s.held = out[0]
	}
	return out[0], nil
}

func (s *inGraph) sample(calls int) (float64, error) {
	if err := s.make(1); err != nil { // the first call after a pause is slow
		return 0, err
	}
	begin := time.Now()
	err := s.make(calls)
	return milliseconds(begin, calls), err
}

func (s *inGraph) make(calls int) error {
	for range calls {
		out, err := s.call()
		if err != nil {
			return err
		}
		if !s.donates {
			out.FinalizeAll()
		}
	}
	return nil
}

// verify checks one call with fresh inputs, and leaves fresh inputs.
func (s *inGraph) verify() error {
	if err := s.place(); err != nil {
		return err
	}
	out, err := s.call()
	if err != nil {
		return err
	}
	if !s.donates {
		defer out.FinalizeAll()
	}
	for rank, shard := range out.Shards() {
		got, err := xla.View[float32](shard)
		if err == nil {
			err = s.check(got, rank)
		}
		if err != nil {
			return fmt.Errorf("device %d: %w", rank, err)
		}
	}
	return s.place()
}

func (s *inGraph) finish() error {
	err := s.verify()
	s.drop()
	s.program.Close()
	return err
}
