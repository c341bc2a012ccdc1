package xla

import (
	"fmt"
	"strings"
	"sync"

	"github.com/gomlx/compute"
	"github.com/gomlx/go-xla/stablehlo"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors/dtensor"
)

// Donates adds the inputs, counted from 0, whose memory the program may use for its
// outputs: a training step that donates its parameters keeps one copy of them, not
// two. What is donated is gone after Call, also where Call fails while it runs; a
// program that does not compile leaves it alone.
func (l Layout) Donates(inputs ...int) Layout {
	l.donated = make([]bool, len(l.donated), 8)
	for _, input := range inputs {
		for input >= len(l.donated) {
			l.donated = append(l.donated, false)
		}
		l.donated[input] = true
	}
	return l
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

// donations says which parameters a program donates, by the name of its graph:
// that is all a builder is told.
type donations struct{ byName sync.Map }

// of returns the donated parameters of a graph. GoMLX names a program's graphs
// "program#0", "program#1", ….
func (d *donations) of(graphName string) []bool {
	if i := strings.LastIndexByte(graphName, '#'); i >= 0 {
		graphName = graphName[:i]
	}
	donated, _ := d.byName.Load(graphName)
	list, _ := donated.([]bool)
	return list
}

func (d *donations) set(name string, donated []bool) {
	if len(donated) > 0 {
		d.byName.Store(name, donated)
	}
}

func (d *donations) forget(name string) { d.byName.Delete(name) }

// give hands a placed tensor's memory over, a value a device.
func give(t *dtensor.Tensor, b *Backend) ([]any, error) {
	given := make([]any, 0, len(t.Shards()))
	for device, shard := range t.Shards() {
		buffer, err := graph.DonateTensorBuffer(shard, b, compute.DeviceNum(device))
		if err != nil {
			return nil, fmt.Errorf("donating the shard on device %d: %w", device, err)
		}
		given = append(given, buffer)
	}
	return given, nil
}
