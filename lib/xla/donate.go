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

// Donates adds inputs, counted from 0, whose memory the program may use for its
// outputs: a training step that donates its parameters keeps one copy of them, not
// two. What is donated is gone after Call, also where the program fails as it runs. An
// error that can be known before (an argument that does not fit, a program that does
// not compile) leaves it alone.
func (l Layout) Donates(inputs ...int) Layout {
	l.donated = slices.Concat(l.donated, inputs)
	return l
}

// checkDonated checks the numbers of donated inputs against how many there are; -1 is
// not known yet.
func (l Layout) checkDonated(inputs int) error {
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

// checkShards checks what is about to be donated together with the rest: afterwards it
// would be too late. Every shard must be there, on the program's devices, and none
// that is donated may be given twice.
func (p *Program) checkShards(placed []*dtensor.Tensor) error {
	first := map[*tensors.Tensor]int{}
	for i, on := range placed {
		for device, shard := range on.Shards() {
			if err := shard.CheckValid(); err != nil {
				return fmt.Errorf("argument %d, shard on device %d: %w", i, device, err)
			}
			if shard.IsOnAnyDevice() {
				if b, err := shard.Backend(); err != nil || b != compute.Backend(p.mesh.backend) {
					return fmt.Errorf("argument %d lies on the devices of another backend: place it on the program's mesh", i)
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

// donate marks a parameter of a program as one whose memory XLA may give to an
// output. GoMLX's donation alone frees the memory but reuses none of it
// (docs/upstream.md, "donation").
func donate(parameter *stablehlo.Value) {
	if parameter.Attributes == nil {
		parameter.Attributes = map[string]any{}
	}
	parameter.Attributes["jax.buffer_donor"] = true
}

// donations says which inputs a program donates, by the name of its graph: that is
// all a builder is told.
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

// give hands a placed tensor's memory over, a value a device.
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
