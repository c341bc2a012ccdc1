package engine

import (
	"context"

	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/params"
)

// Hook communicates the gradients of a unit in place of an all-reduce. A rank has one of its own.
type Hook interface {
	// Reduce replaces the rank's gradients by the sum of all ranks', or what is near to it; all ranks must get the same
	// bits. All ranks call it with the same units in the same order, one at a time.
	Reduce(ctx context.Context, g group.Group, grads Gradients) error
}

// Gradients are a rank's gradients of a unit, in memory that the host reaches.
type Gradients struct {
	Params  params.Tree // whose gradients they are, in the type that they are summed in, in the order in which they lie
	Offsets []int       // where each begins, in elements
	Unit    int
	Type    group.Type
	Data    group.Buffer
}
