package main

import (
	"fmt"

	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/sequence"
	"github.com/shardbook/shardbook/lib/tensor"
)

// newTensor measures a step with tensor or context parallelism. A case is compared among those with the same number of
// devices, by the time of the step itself: all do the same arithmetic on the same cores.
func newTensor() *benchmark {
	var b training
	return &benchmark{name: "tensor",
		about: "a training step of the reference GPT with tensor or context parallelism on 2 or 4 devices, float32",
		flags: b.flags, cases: b.tensorCases, implementations: tensorImplementations}
}

// tensorDevices are the numbers of devices.
var tensorDevices = []int{2, 4}

// devicesClass is the class of the implementations with n devices.
func devicesClass(n int) string { return fmt.Sprintf("%d devices", n) }

func (b *training) tensorCases() ([]testCase, error) {
	sizes, err := b.cases()
	var cases []testCase
	for _, c := range sizes {
		size, name := c.params.(trainParams).trainSize, c.name
		for _, n := range tensorDevices {
			if size.Heads%n != 0 {
				return nil, fmt.Errorf("%s: %d heads, want a multiple of %d", name, size.Heads, n)
			}
			if size.Seq%(2*n) != 0 { // zigzag has two chunks for each device
				return nil, fmt.Errorf("%s: sequences of %d, want a multiple of %d", name, size.Seq, 2*n)
			}
			c.class = devicesClass(n)
			c.name = name + ", " + c.class
			cases = append(cases, c)
		}
	}
	return cases, err
}

func tensorImplementations() (all []implementation) {
	const axis = "share"
	for _, n := range tensorDevices {
		serve := func(model gpt.Parallel) implementation {
			return implementation{serve: serveGPT(n, startParallel(axis, model))}
		}
		add := func(of, about string, role role, im implementation) {
			im.name, im.about, im.role, im.class = fmt.Sprintf("%s-%d", of, n), about, role, devicesClass(n)
			all = append(all, im)
		}
		add("tensor", "tensor-parallel, an all-reduce for each pair of matrices", ours,
			serve(gpt.Parallel{Tensor: tensor.Group{Axis: axis}}))
		add("sequence", "the same with sequence parallelism between the pairs", variant,
			serve(gpt.Parallel{Tensor: tensor.Group{Axis: axis, Sequence: true}}))
		add("ring", "context-parallel, zigzag, ring attention", variant,
			serve(gpt.Parallel{Sequence: sequence.Group{Ring: axis, Placement: sequence.Zigzag}}))
		add("jax", "jit over a mesh, matrices and heads sharded", peer,
			implementation{commands: trainJAX(n, "--tensor")})
		add("multiply-add", multiplyAddAbout, limit, implementation{serve: serveArithmetic})
	}
	return all
}
