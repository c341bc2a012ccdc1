package group

import (
	"sync/atomic"
	"unsafe"
)

const (
	// blockBytes is the size of a block, which one rank processes at a time: small enough
	// for its core's cache, large enough that the cost of taking it is negligible.
	blockBytes = 32 << 10

	// streamBytes is the size of results that do not fit in the caches, and are written past them.
	streamBytes = 16 << 20
)

// work is the work of one collective call, cut in blocks that any rank may process. The
// result does not depend on which rank processed a block.
type work struct {
	calls  []Call
	parts  int   // parts of the data
	length int   // elements of a part, at most
	block  int   // elements of a block
	each   int   // blocks of a part
	blocks int64 // blocks in all
	stream bool

	next   atomic.Int64 // the block to do next
	left   atomic.Int64 // blocks that are not done
	broken atomic.Bool  // a rank died in one
}

// prepare cuts the work of calls that agree. There is always at least one block.
func (w *work) prepare(calls []Call) {
	call, ranks := &calls[0], len(calls)
	w.calls, w.parts, w.length = calls, 1, call.Elements()
	copies := 1 // how often each element is written
	switch call.Kind {
	case KindBarrier, KindSplit:
		w.length = 0
	case KindBroadcast, KindAllReduce:
		copies = ranks
	case KindAllGather:
		w.parts, copies = ranks, ranks
	case KindGather, KindScatter, KindReduceScatter:
		w.parts = ranks
	case KindAllToAll:
		w.parts = ranks * ranks
		w.length /= ranks
		if call.InCounts != nil {
			w.length = 0
			for i := range calls {
				for _, count := range calls[i].InCounts {
					w.length = max(w.length, count)
				}
			}
		}
	}
	bytes := max(1, call.Type.Size())
	w.block = blockBytes / bytes
	w.each = (w.length + w.block - 1) / w.block
	w.blocks = max(1, int64(w.parts)*int64(w.each))
	w.stream = w.parts*w.length*bytes*copies >= streamBytes
	w.next.Store(0)
	w.left.Store(w.blocks)
	w.broken.Store(false)
}

// block does one block.
func (m *member) block(i int) {
	w := &m.work
	if w.each == 0 {
		return
	}
	part, begin := i/w.each, i%w.each*w.block
	end := min(begin+w.block, w.length)
	calls, ranks := w.calls, len(w.calls)
	call := &calls[0]
	root := call.Peer
	switch call.Kind {
	case KindBroadcast:
		for rank := range calls {
			if rank != root {
				w.copy(&calls[rank].Out, begin, &calls[root].In, begin, end-begin)
			}
		}
	case KindReduce:
		m.reduce(0, begin, end, calls[root:root+1])
	case KindAllReduce:
		m.reduce(0, begin, end, calls)
	case KindReduceScatter:
		m.reduce(part*w.length, begin, end, calls[part:part+1])
	case KindGather:
		w.copy(&calls[root].Out, part*w.length+begin, &calls[part].In, begin, end-begin)
	case KindScatter:
		w.copy(&calls[part].Out, begin, &calls[root].In, part*w.length+begin, end-begin)
	case KindAllGather:
		for rank := range calls {
			w.copy(&calls[rank].Out, part*w.length+begin, &calls[part].In, begin, end-begin)
		}
	case KindAllToAll:
		from, to := part/ranks, part%ranks
		source, target := to*w.length, from*w.length
		if call.InCounts != nil {
			source, target = sum(calls[from].InCounts[:to]), sum(calls[to].OutCounts[:from])
			end = min(end, calls[from].InCounts[to])
		}
		if begin < end {
			w.copy(&calls[to].Out, target+begin, &calls[from].In, source+begin, end-begin)
		}
	}
}

// copy copies elements of one buffer to another, unless they are the same memory.
func (w *work) copy(out *Buffer, to int, in *Buffer, from, elements int) {
	bytes := w.calls[0].Type.Size()
	target, source := unsafe.Add(out.Data, to*bytes), unsafe.Add(in.Data, from*bytes)
	if target != source {
		move(target, source, elements*bytes, w.stream)
	}
}

// reduce reduces elements begin to end of the part of every rank's in that starts at
// base, into begin to end of the outs.
func (m *member) reduce(base, begin, end int, outs []Call) {
	calls := m.work.calls
	bytes := calls[0].Type.Size()
	for rank := range calls {
		m.srcs[rank] = unsafe.Add(calls[rank].In.Data, (base+begin)*bytes)
	}
	for i := range outs {
		m.dsts[i] = unsafe.Add(outs[i].Out.Data, begin*bytes)
	}
	reduce(calls[0].Type, calls[0].Op, m.dsts[:len(outs)], m.srcs, end-begin)
}

func sum(counts []int) (total int) {
	for _, count := range counts {
		total += count
	}
	return total
}
