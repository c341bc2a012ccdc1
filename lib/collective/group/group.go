// Package group has groups of ranks and their collective operations, as MPI and torch.distributed have them, for slices
// of Go's types. The ranks are goroutines of one process that share memory ([Run]); lib/collective/mpi implements the
// same interface between processes and hosts.
//
// A collective between goroutines is one pass over the ranks' buffers, cut in blocks that any rank may process: a sum
// reads each element of every buffer once and writes it once, in the order of the ranks, so that the result does not
// depend on which rank processed a block. A call that does not run in the background allocates nothing. [RunPlan] does
// the same operations by sends and receives, by an algorithm of package plan.
//
// Buffers are slices of any memory that the processor can address, Go's or a device's (unsafe.Slice). They are not
// copied on the way. No rank may write to memory that another rank uses in the same call.
//
// Integers wrap. A maximum or minimum with a NaN is NaN. The 16-bit floats are reduced in float32 and rounded once, to
// nearest, ties to even; a mean is divided before that.
package group

import (
	"context"
	"io"
	"unsafe"

	"github.com/gomlx/compute/dtypes/bfloat16"
	"github.com/gomlx/compute/dtypes/float16"
)

// Group is one rank's view of a group of ranks: MPI's communicator, PyTorch's process group.
//
// Every rank of the group makes the same collective calls in the same order, each with its own data. The functions of
// this package ([AllReduce], [Broadcast], …) make the calls; Do and Start take them as data.
//
// A call that fails on one rank fails on all: every other rank gets a [*Failure] that names the rank at fault, and so
// does every later call on the group. That also holds for an invalid call, for a call that other ranks do not make, and
// for a context that ends while the rank waits for others.
//
// A group may be used by several goroutines of a rank; their calls are made one at a
// time, in the order in which they come.
type Group interface {
	// Rank is this rank's number, from 0.
	Rank() int

	// Size is the number of ranks.
	Size() int

	// Do makes a call and returns when this rank's part in it is done: its buffers
	// may then be used again. It waits for the calls started before it.
	Do(ctx context.Context, call Call) error

	// Start makes a call in the background. The call's buffers must not be used until Wait returns. Collective calls
	// that were started run one after another, in order; sends and receives run in order per peer and direction,
	// concurrently with everything else.
	Start(ctx context.Context, call Call) *Pending

	// Split makes a group of the ranks that give the same color, ordered by key and then by rank in this group, like
	// MPI_Comm_split. It is a collective call. A rank that gives a negative color takes part and gets nil. A failure of
	// one group does not fail the others, but a rank that has ended is missing in all.
	Split(ctx context.Context, color, key int) (Group, error)

	// Dump writes the last operations of every rank that can be reached, with those in
	// sub-groups, as text: their flight recorders.
	Dump(w io.Writer) error
}

// Element is a type of the elements of buffers.
type Element interface {
	float32 | float64 | bfloat16.BFloat16 | float16.Float16 | int32 | int64 | uint8
}

// Type is an [Element] as a value.
type Type uint8

const (
	Float32 Type = iota
	Float64
	BFloat16
	Float16
	Int32
	Int64
	Uint8
)

// ReduceOp is a reduction.
type ReduceOp uint8

const (
	Sum ReduceOp = iota
	Mean
	Product
	Max
	Min
)

// Kind is the operation of a call.
type Kind uint8

const (
	KindSend Kind = iota
	KindRecv
	KindBroadcast
	KindReduce
	KindAllReduce
	KindGather
	KindAllGather
	KindScatter
	KindReduceScatter
	KindAllToAll
	KindBarrier
	KindSplit
)

// Call is one rank's part of an operation, as data.
type Call struct {
	Kind Kind
	Type Type
	Op   ReduceOp // of reductions
	Peer int      // the root, or the other rank of a send or receive

	// In is the input and Out the output, where the operation has either. Operations
	// in place (broadcast, reduce, all-reduce) have them equal.
	In, Out Buffer

	// InCounts and OutCounts are the numbers of elements to and from each rank, of an
	// all-to-all with uneven parts; nil means even parts.
	InCounts, OutCounts []int

	split *part // of a split
}

// Buffer is a slice without its type, in Go's memory or a device's.
type Buffer struct {
	Data unsafe.Pointer
	Len  int // elements
}
