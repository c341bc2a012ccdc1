package xla

import (
	"fmt"
	"slices"
	"strings"
	"sync"

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
func (l Shardings) checkDonated(inputs int) error {
	for _, i := range l.donated {
		switch {
		case i < 0:
			return fmt.Errorf("the layout donates input %d: count from 0", i)
		case inputs >= 0 && i >= inputs:
			return fmt.Errorf("the layout donates input %d of %d: count from 0", i, inputs)
		}
	}
	return nil
}

// checkShards checks all shards before anything is donated: each must exist, on the program's devices, and donated ones
// must not be passed twice.
func (p *Program) checkShards(placed []*dtensor.Tensor) error {
	first := map[*tensors.Tensor]int{}
	for i, on := range placed {
		for device, shard := range on.Shards() {
			if err := shard.CheckValid(); err != nil {
				return fmt.Errorf("argument %d, shard on device %d: %w", i, device, err)
			}
			if shard.IsOnAnyDevice() {
				if b, err := shard.Backend(); err != nil || b != compute.Backend(p.mesh.backend) {
					return fmt.Errorf("argument %d is on another backend: place it on the program's mesh", i)
				}
			}
			if j, again := first[shard]; again && (p.donates(i) || p.donates(j)) {
				return fmt.Errorf("arguments %d and %d are the same tensor, whose memory the program may "+
					"overwrite: give a copy", j, i)
			}
			first[shard] = i
		}
	}
	return nil
}

// donate marks a parameter whose memory XLA may use for an output. GoMLX's donation alone frees the memory but does not
// reuse it (docs/upstream.md, "donation").
func donate(parameter *stablehlo.Value) {
	if parameter.Attributes == nil {
		parameter.Attributes = map[string]any{}
	}
	parameter.Attributes["jax.buffer_donor"] = true
}

// donations are the inputs that programs donate, by the name of the graph, which is all that a builder gets.
type donations struct{ byName sync.Map }

// of returns the donated inputs of a graph. GoMLX names a program's graphs
// "program#0", "program#1", ….
func (d *donations) of(graphName string) []int {
	if i := strings.LastIndexByte(graphName, '#'); i >= 0 {
		graphName = graphName[:i]
	}
	donated, _ := d.byName.Load(graphName)
	list, _ := donated.([]int)
	return list
}

func (d *donations) set(name string, donated []int) {
	if len(donated) > 0 {
		d.byName.Store(name, donated)
	}
}

func (d *donations) forget(name string) { d.byName.Delete(name) }

// give donates the buffers of a placed tensor, one per device.
func give(t *dtensor.Tensor, m *Mesh) ([]any, error) {
	given := make([]any, 0, len(t.Shards()))
	for i, shard := range t.Shards() {
		buffer, err := graph.DonateTensorBuffer(shard, m.backend, compute.DeviceNum(m.first+i))
		if err != nil {
			return nil, fmt.Errorf("donating the shard on device %d: %w", m.first+i, err)
		}
		given = append(given, buffer)
	}
	return given, nil
}
