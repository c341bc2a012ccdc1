package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/shardbook/shardbook/lib/chart"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/sequence"
	"github.com/shardbook/shardbook/lib/tensor"
)

// tensorBench measures a step whose layers or sequences several devices share. A case is compared among those that have
// equally many devices, by the time of the step itself: all have the same arithmetic to do on the same cores.
type tensorBench struct{ training }

func newTensor() benchmark { return &tensorBench{} }

func (*tensorBench) name() string { return "tensor" }

func (*tensorBench) about() string {
	return "a training step of the reference GPT, whose layers or sequences 2 or 4 devices share, float32"
}

// tensorDevices are how many devices share.
var tensorDevices = []int{2, 4}

// devicesClass is the class of those that have so many devices.
func devicesClass(n int) string { return fmt.Sprintf("%d devices", n) }

func (b *tensorBench) cases() ([]testCase, error) {
	sizes, err := b.training.cases()
	var cases []testCase
	for _, c := range sizes {
		size, name := c.params.(trainParams).trainSize, c.name
		for _, n := range tensorDevices {
			if size.Heads%n != 0 {
				return nil, fmt.Errorf("%s: %d heads, want a multiple of %d", name, size.Heads, n)
			}
			if size.Seq%(2*n) != 0 { // zigzag has two pieces for each device
				return nil, fmt.Errorf("%s: sequences of %d, want a multiple of %d", name, size.Seq, 2*n)
			}
			c.class = devicesClass(n)
			c.name = name + ", " + c.class
			cases = append(cases, c)
		}
	}
	return cases, err
}

func (*tensorBench) implementations() (all []implementation) {
	const axis = "share"
	for _, n := range tensorDevices {
		name := func(of string) string { return fmt.Sprintf("%s-%d", of, n) }
		start := func(model gpt.Parallel) startRun { return startParallel(axis, model) }
		all = append(all,
			implementation{name: name("tensor"), about: "tensor-parallel, an all-reduce a pair of matrices", role: ours, class: devicesClass(n),
				serve: serveTraining(n, start(gpt.Parallel{Tensor: tensor.Group{Axis: axis}}))},
			implementation{name: name("sequence"), about: "the same with tokens shared between the pairs", role: variant, class: devicesClass(n),
				serve: serveTraining(n, start(gpt.Parallel{Tensor: tensor.Group{Axis: axis, Sequence: true}}))},
			implementation{name: name("ring"), about: "sequences shared, zigzag, their attention around a ring", role: variant, class: devicesClass(n),
				serve: serveTraining(n, start(gpt.Parallel{Sequence: sequence.Group{Ring: axis, Placement: sequence.Zigzag}}))},
			implementation{name: name("jax"), about: "jit over a mesh, matrices and heads sharded", role: peer, class: devicesClass(n),
				commands: trainJAX(n, "--tensor")})
	}
	return all
}

// charts are those of [training], for each number of devices.
func (b *tensorBench) charts(records []record) (charts []*chart.Chart) {
	for _, n := range tensorDevices {
		others := func(r record) bool { return !strings.HasSuffix(r.Case, devicesClass(n)) }
		if of := slices.DeleteFunc(slices.Clone(records), others); len(of) > 0 {
			charts = append(charts, b.training.charts(of)...)
		}
	}
	return charts
}
