package main

import (
	"context"
	"time"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/flash"
	"github.com/shardbook/shardbook/lib/xla"
)

// flashXLA computes attention with this project on one device.
type flashXLA struct {
	compiled
	attention   func(q, k, v *graph.Node) *graph.Node
	holdsScores bool
	prints      []float64 // fingerprints of the results
}

// flashEngine is lib/flash's attention.
func flashEngine(e flash.Implementation) flashXLA {
	return flashXLA{attention: func(q, k, v *graph.Node) *graph.Node {
		return flash.Attention(q, k, v, flash.Options{Mask: flash.Causal().Mask, Implementation: e})
	}}
}

func (s flashXLA) serve(ctx context.Context) (subject, func(), error) {
	backend, err := openXLA(ctx, 1)
	if err != nil {
		return nil, nil, err
	}
	s.mesh, err = backend.Mesh(xla.Axis("device", 1))
	for _, c := range flashSmall {
		if err == nil {
			_, err = s.build(c)
		}
		if err == nil {
			err = s.finish()
		}
	}
	return &s, backend.Close, err
}

func (s *flashXLA) prepare(params []byte) (facts, error) {
	c, err := parseFlash(params, s.holdsScores)
	if err != nil {
		return facts{}, err
	}
	return s.build(c)
}

// build puts the operands on the device, compiles, and makes the first call.
func (s *flashXLA) build(c flashCase) (f facts, err error) {
	var operands []*tensors.Tensor
	for number := range 3 {
		operands = append(operands,
			tensors.FromFlatDataAndDimensions(flashData(number, c.elements()), 1, c.Tokens, c.Heads, c.Width))
	}
	if err := s.put(xla.Replicated(), operands...); err != nil {
		return f, err
	}
	body := func(in []*graph.Node) []*graph.Node {
		out := s.attention(in[0], in[1], in[2])
		if !c.Backward {
			return []*graph.Node{out}
		}
		return graph.Gradient(graph.ReduceAllSum(out), in...)
	}
	if s.program, err = xla.Compile(s.mesh, body, xla.In(xla.Replicated()).Gives(xla.Replicated())); err != nil {
		return f, err
	}
	if err := s.program.Prepare(s.inputs...); err != nil {
		return f, err
	}
	plan, err := s.program.Memory()
	if err != nil {
		return f, err
	}
	var out []*dtensor.Tensor
	begin := time.Now()
	rise, err := peakRise(func() (err error) {
		out, err = s.call()
		return err
	})
	if err != nil {
		return f, err
	}
	s.slow = time.Since(begin) > slowCall
	s.prints, err = fingerprints(out)
	return facts{Values: s.prints, Memory: footprint{Arguments: plan.Arguments, Outputs: plan.Outputs,
		Temporary: plan.Temporary, ExtraRSS: rise}}, err
}

// fingerprints are those of the results, which it frees.
func fingerprints(results []*dtensor.Tensor) (prints []float64, err error) {
	defer free(results)
	for _, result := range results {
		got, err := xla.View[float32](result.Shards()[0])
		if err != nil {
			return nil, err
		}
		prints = append(prints, fingerprint(got))
	}
	return prints, nil
}

// finish checks that the results are still the same.
func (s *flashXLA) finish() error {
	out, err := s.call()
	if err != nil {
		return err
	}
	got, err := fingerprints(out)
	if err == nil {
		err = agree(got, s.prints, flashTolerance)
	}
	s.close()
	return err
}
