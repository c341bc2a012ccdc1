// Package plan has the algorithms of collective operations as plain data: what each rank sends, receives, reduces and
// copies, round by round. [New] makes a plan, which can be proved right ([Plan.Prove]), counted ([Plan.Count]), costed
// on a described network ([Plan.Cost]), drawn ([Plan.Draw]), and printed and read back ([Plan.String], [Parse]), all
// without a device; lib/collective/group runs the same plan between ranks. Package plan/draw has charts.
package plan

// Op is a collective operation.
type Op uint8

const (
	Broadcast     Op = iota // the root's data to every rank
	Reduce                  // the reduction of all ranks' data to the root
	AllReduce               // the reduction of all ranks' data to every rank
	Gather                  // every rank's part to the root
	AllGather               // every rank's part to every rank
	Scatter                 // part r of the root's data to rank r
	ReduceScatter           // part r of the reduction to rank r
	AllToAll                // part p of rank r's data becomes part r of rank p's
)

// Plan is one algorithm for one operation and one number of ranks.
//
// Each rank has Slots buffers. The first Chunks of them are the data of the operation, cut as evenly as possible (see
// [Cut]); the rest is scratch, each slot large enough for any chunk. Where an operation has parts (gather, all-gather,
// scatter, reduce-scatter, all-to-all), Chunks is a multiple of Ranks, and part p is the chunks p·Chunks/Ranks to
// (p+1)·Chunks/Ranks-1. The result replaces the data; only that of AllToAll is in the Chunks slots after the data.
type Plan struct {
	Op        Op
	Algorithm Algorithm
	Ranks     int
	Root      int // of Broadcast, Reduce, Gather and Scatter; else 0
	Chunks    int
	Slots     int
	Rounds    int
	Steps     [][]Step // by rank, in order
}

// Action is what a step does.
type Action uint8

const (
	Send    Action = iota // send Slot to Peer
	Receive               // receive from Peer into Slot
	Add                   // Slot = Slot ∘ From, where ∘ is the reduction (sum, max, …)
	Copy                  // Slot = From
)

// Step is one action of one rank.
//
// In each round a rank first posts its sends and receives, all at the same time, and when they are done takes its local
// steps (Add, Copy) in order. No slot is both sent and received in one round. The sends from one rank to another in a
// round match the receives there in order, and count as one message, of one or more chunks.
type Step struct {
	Round  int
	Action Action
	Peer   int // the other rank, of Send and Receive
	Chunk  int // whose size the slot has: 0 ≤ Chunk < Chunks
	Slot   int
	From   int // of Add and Copy
}

// Cut returns where chunk i begins and ends if n elements are cut in chunks: the first
// n mod chunks of them have one element more than the rest.
func Cut(n, chunks, i int) (begin, end int) {
	size, more := n/chunks, n%chunks
	begin = i*size + min(i, more)
	end = begin + size
	if i < more {
		end++
	}
	return begin, end
}
