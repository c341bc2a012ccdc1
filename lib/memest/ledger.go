package memest

import (
	"cmp"
	"fmt"
	"slices"
)

// Kind is the purpose of a line's memory.
type Kind string

// The kinds in the order in which a ledger lists them.
const (
	Parameters    Kind = "parameters"    // in the type of the passes
	Master        Kind = "master copy"   // master weights, where the optimizer updates another copy
	Gradients     Kind = "gradients"     //
	Optimizer     Kind = "optimizer"     // optimizer states
	Activations   Kind = "activations"   // saved for the backward pass
	Logits        Kind = "logits"        // with the loss's intermediate values and gradient
	Communication Kind = "communication" // buffers of collectives
	Temporary     Kind = "temporary"     // other memory at the peak
	Overhead      Kind = "overhead"      // the framework's own
)

// Kinds lists all kinds in order.
func Kinds() []Kind {
	return []Kind{Parameters, Master, Gradients, Optimizer, Activations, Logits, Communication, Temporary, Overhead}
}

// Item is a line of a ledger.
type Item struct {
	Kind Kind   `json:"kind"`
	Name string `json:"name"`
	// Count is the number of such tensors or buffers, for example one for each block and micro-batch.
	Count int64 `json:"count"`
	// Formula computes the bytes of one tensor or buffer, with the names of the package comment. Values lists the names
	// with their values.
	Formula string `json:"formula"`
	Values  string `json:"values,omitempty"`
	Bytes   int64  `json:"bytes"` // of all together
	Source  string `json:"source"`
	Host    bool   `json:"host,omitempty"` // in host memory, not on the device
}

// Stage is the ledger of one device of a pipeline stage. All devices of a stage have the same.
type Stage struct {
	Index  int `json:"stage"`
	First  int `json:"first_block"`
	Blocks int `json:"blocks"`
	// Moment is the point of the step at which memory peaks. Items list the memory at that point.
	Moment string `json:"moment,omitempty"`
	Items  []Item `json:"items"`
}

// Bytes returns the memory of one device.
func (s Stage) Bytes() int64 { return s.sum(func(it Item) bool { return !it.Host }) }

// HostBytes returns the host memory that one device of the stage uses.
func (s Stage) HostBytes() int64 { return s.sum(func(it Item) bool { return it.Host }) }

// Of returns the memory of one device for one kind.
func (s Stage) Of(kind Kind) int64 {
	return s.sum(func(it Item) bool { return it.Kind == kind && !it.Host })
}

func (s Stage) sum(of func(Item) bool) (bytes int64) {
	for _, it := range s.Items {
		if of(it) {
			bytes += it.Bytes
		}
	}
	return bytes
}

// Ledger lists the memory of a training run, by pipeline stage.
type Ledger struct {
	Stages []Stage `json:"stages"`
}

// Largest returns the stage whose devices need the most memory.
func (l Ledger) Largest() Stage {
	return slices.MaxFunc(l.Stages, func(a, b Stage) int { return cmp.Compare(a.Bytes(), b.Bytes()) })
}

// BytesPerDevice returns the memory of the device that needs the most.
func (l Ledger) BytesPerDevice() int64 { return l.Largest().Bytes() }

// GB formats bytes in units of 10⁹.
func GB(n int64) string { return fmt.Sprintf("%.2f GB", float64(n)/1e9) }
