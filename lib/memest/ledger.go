package memest

import (
	"cmp"
	"fmt"
	"slices"
)

// Kind is what a line's memory is for.
type Kind string

// The kinds in the order in which a ledger lists them.
const (
	Parameters    Kind = "parameters"    // what the passes compute with
	Master        Kind = "master copy"   // what is updated, where that is another copy
	Gradients     Kind = "gradients"     //
	Optimizer     Kind = "optimizer"     // the rule's states
	Activations   Kind = "activations"   // kept by the forward pass for the backward pass
	Logits        Kind = "logits"        // of the head, and what the loss makes of them
	Communication Kind = "communication" // buffers of collectives
	Temporary     Kind = "temporary"     // what the busiest moment needs besides
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
	// Count is how many times it is there, such as once a block and micro-batch.
	Count int64 `json:"count"`
	// Formula is the bytes of one, in the names that the package comment lists, and Values their values.
	Formula string `json:"formula"`
	Values  string `json:"values,omitempty"`
	Bytes   int64  `json:"bytes"` // of all together
	Source  string `json:"source"`
	// Host says that the memory is the host's, not the device's.
	Host bool `json:"host,omitempty"`
}

// Stage is the ledger of the devices of one pipeline stage; each has the same.
type Stage struct {
	Index  int `json:"stage"`
	First  int `json:"first_block"`
	Blocks int `json:"blocks"`
	// Moment is when the memory of the passes is at its most: the lines are those of that moment.
	Moment string `json:"moment,omitempty"`
	Items  []Item `json:"items"`
}

// Bytes is the memory of one device.
func (s Stage) Bytes() int64 {
	var sum int64
	for _, it := range s.Items {
		if !it.Host {
			sum += it.Bytes
		}
	}
	return sum
}

// HostBytes is the host memory that one device of the stage uses.
func (s Stage) HostBytes() int64 {
	var sum int64
	for _, it := range s.Items {
		if it.Host {
			sum += it.Bytes
		}
	}
	return sum
}

// Of is the memory of one device for one kind of thing.
func (s Stage) Of(kind Kind) int64 {
	var sum int64
	for _, it := range s.Items {
		if it.Kind == kind && !it.Host {
			sum += it.Bytes
		}
	}
	return sum
}

// Ledger lists the memory of a training run line by line, stage by stage.
type Ledger struct {
	Stages []Stage `json:"stages"`
}

// Largest is the stage whose devices need most.
func (l Ledger) Largest() Stage {
	return slices.MaxFunc(l.Stages, func(a, b Stage) int { return cmp.Compare(a.Bytes(), b.Bytes()) })
}

// BytesPerDevice is the memory of the device that needs most.
func (l Ledger) BytesPerDevice() int64 { return l.Largest().Bytes() }

// GB writes bytes in units of 10⁹.
func GB(n int64) string { return fmt.Sprintf("%.2f GB", float64(n)/1e9) }

// GiB writes bytes in units of 2³⁰.
func GiB(n int64) string { return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30)) }
