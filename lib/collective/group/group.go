// Package group has groups of ranks and their collective operations, typed. The
// ranks are goroutines of one process that share memory (Run); lib/collective/mpi
// has the same interface between processes and hosts.
//
// Here an operation is one pass over the ranks' buffers, cut in blocks that any
// rank may do: a sum reads each element of every buffer once and writes it once, in
// the order of the ranks, so that the result does not depend on who did what. A
// call that is not started in the background allocates nothing. RunPlan does the
// same operations message by message, by an algorithm of package plan.
//
// Buffers are slices of any memory that the processor reaches, Go's or a device's
// (unsafe.Slice), and nothing is copied on the way. No rank may write to memory that
// another uses in the same call.
//
// Integers wrap. A maximum or minimum with a NaN is NaN. The 16-bit floats are
// reduced in float32 and rounded once, to the nearest and to even in a tie; a mean
// is divided before that.
package group

import (
	"context"
	"io"
	"unsafe"

	"github.com/gomlx/compute/dtypes/bfloat16"
	"github.com/gomlx/compute/dtypes/float16"
)

// Group is one rank's view of a group of ranks.
//
// Every rank of the group makes the same collective calls in the same order, each
// with its own data. The functions of this package (AllReduce, Broadcast, …) make
// the calls; Do and Start take them as data.
//
// A call that fails on one rank fails on all: each surviving rank returns a *Failure
// that names the rank at fault, and from then on every call on the group returns it.
// That holds for a call that cannot be (see Call.Check) as for one that the other
// ranks do not make, and for a context that ends while the rank waits for others.
//
// A group may be used by several goroutines of a rank; their calls are made one at a
// time, in the order in which they come.
type Group interface {
	// Rank is this rank's number, from 0.
	Rank() int

	// Size is the number of ranks.
	Size() int

	// Do makes a call and returns when this rank's part in it is done: its buffers
	// may then be used again. It follows the calls started before it.
	Do(ctx context.Context, call Call) error

	// Start makes a call in the background. The call's buffers belong to it until
	// Wait returns. Collective calls that were started run one after another, in
	// order; sends and receives run in order per peer and direction, and beside
	// everything else.
	Start(ctx context.Context, call Call) *Pending

	// Split makes a group of the ranks that give the same color, numbered by key
	// and then by rank in this group. It is a collective call. A rank that gives a
	// negative color takes part and gets nil. What fails in one of the groups does
	// not fail the others, but a rank that is gone is gone from all.
	Split(ctx context.Context, color, key int) (Group, error)

	// Flight returns this rank's last operations, oldest first.
	Flight() []Record

	// Dump writes the last operations of every rank that can be reached, as text.
	// A rank's operations in sub-groups are among them.
	Dump(w io.Writer) error
}

// Element is a type that buffers can have.
type Element interface {
	float32 | float64 | bfloat16.BFloat16 | float16.Float16 | int32 | int64 | uint8
}

// Type is an Element as a value.
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

// Op is a reduction.
type Op uint8

const (
	Sum Op = iota
	Mean
	Product
	Max
	Min
)

// Kind is what a call does.
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

// Call is one operation as one rank asks for it. The functions that end in Call
// make them (AllReduceCall, …).
type Call struct {
	Kind Kind
	Type Type
	Op   Op  // of reductions
	Peer int // the root, or the other rank of a send or receive

	// In is what the rank gives and Out what it gets, where the operation has either.
	// Operations in place (broadcast, reduce, all-reduce) have them equal.
	In, Out Buffer

	// InCounts and OutCounts are the elements to and from each rank, of an
	// all-to-all with uneven parts; nil means even parts.
	InCounts, OutCounts []int

	split *part // of a split
}

// Buffer is a slice without its type. It may lie in Go's memory or a device's.
type Buffer struct {
	Data unsafe.Pointer
	Len  int // elements
}
