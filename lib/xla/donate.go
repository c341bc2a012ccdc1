package xla

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gomlx/compute"
	"github.com/gomlx/go-xla/stablehlo"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"
)

// Donates adds inputs, counted from 0, whose memory the program may reuse for its outputs: a training step that donates
// its parameters needs one copy of them, not two. Donated tensors are invalid after Call, even if the program fails
// while it runs. Errors that are found before, such as an argument that does not fit, leave them valid.
func (l Shardings) Donates(inputs ...int) Shardings {
	l.donated = slices.Concat(l.donated, inputs)
	return l
}

// checkDonated checks the indices of donated inputs; the number of inputs is -1 if it is not known yet.
func checkDonated(donated []int, inputs int) error {
	for _, i := range donated {
		switch {
		case i < 0:
			return fmt.Errorf("the layout donates input %d: count from 0", i)
		case inputs >= 0 && i >= inputs:
			return fmt.Errorf("the layout donates input %d of %d: count from 0", i, inputs)
		}
	}
	return nil
}

// passed has the arguments that shards belong to.
type passed map[*tensors.Tensor]int

// check checks a shard of argument i before anything is donated: it must exist, and not be passed twice if it is
// donated.
func (p passed) check(c *compiled, i int, shard *tensors.Tensor) error {
	if err := shard.CheckValid(); err != nil {
		return err
	}
	if j, again := p[shard]; again && (c.donates(i) || c.donates(j)) {
		return fmt.Errorf("arguments %d and %d are the same tensor, whose memory the program may "+
			"overwrite: give a copy", j, i)
	}
	p[shard] = i
	return nil
}

// checkShards checks all shards before anything is donated.
func (p *Program) checkShards(placed []*dtensor.Tensor) error {
	all := passed{}
	for i, on := range placed {
		for device, shard := range on.Shards() {
			if err := all.check(&p.compiled, i, shard); err != nil {
				return fmt.Errorf("argument %d, shard on device %d: %w", i, device, err)
			}
			if shard.IsOnAnyDevice() {
				if b, err := shard.Backend(); err != nil || b != compute.Backend(p.mesh.backend) {
					return fmt.Errorf("argument %d is on another backend: place it on the program's mesh", i)
				}
			}
		}
	}
	return nil
}

// give returns a shard of argument i as GoMLX takes it: donated, or as it is.
func (c *compiled) give(i int, shard *tensors.Tensor, device int) (any, error) {
	if !c.donates(i) {
		return shard, nil
	}
	buffer, err := graph.DonateTensorBuffer(shard, c.backend, compute.DeviceNum(device))
	if err != nil {
		return nil, fmt.Errorf("donating argument %d on device %d: %w", i, device, err)
	}
	return buffer, nil
}

// donate marks a parameter whose memory XLA may use for an output. GoMLX's donation alone frees the memory but does not
// reuse it (docs/upstream.md, "donation").
func donate(parameter *stablehlo.Value) {
	if parameter.Attributes == nil {
		parameter.Attributes = map[string]any{}
	}
	parameter.Attributes["jax.buffer_donor"] = true
}

// donatedBy returns the inputs that a graph donates. The builder knows no more than its name, which GoMLX makes of the
// program's: "program#0", "program#1", ….
func donatedBy(graphName string) []int {
	if i := strings.LastIndexByte(graphName, '#'); i >= 0 {
		graphName = graphName[:i]
	}
	donated, _ := donations.Load(graphName)
	list, _ := donated.([]int)
	return list
}
