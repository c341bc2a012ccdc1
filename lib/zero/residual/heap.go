package residual

import (
	"fmt"
	"math"
	"slices"
)

// Event is an allocation of a device's memory, or its end.
type Event struct {
	ID    int   // of the allocation
	Bytes int64 // of an allocation; not used where it ends
	Free  bool  // it ends
	Long  bool  // it lives long, as activation checkpoints and gradients do: see WithRegion
}

// Report is what became of a sequence of allocations.
type Report struct {
	Peak    int64 // the most bytes that were allocated at once
	Highest int64 // bytes from the lowest address to the highest that was allocated

	// What there was at the end or, where an allocation failed, at that time.
	Used    int64 // allocated bytes
	Largest int64 // the largest free block; with no limit of capacity, the largest below Highest
	Free    int64 // all free blocks together, counted likewise

	Failed bool  // an allocation found no free block that is large enough, and the replay ended there
	At     int   // the event that failed
	Asked  int64 // its bytes
}

// Fragmented reports whether an allocation failed although enough bytes were free, if not in one piece.
func (r Report) Fragmented() bool { return r.Failed && r.Asked <= r.Free }

// Replay makes the allocations, in their order, in a model of a device's memory of so many bytes; with 0 it has no end.
// The model is an allocator that takes the first free block, from address 0, that is large enough, and neither rounds
// nor moves anything. Real ones round, and keep lists by size, but have holes between blocks that live long, as the
// model has. (XLA's CPU devices take memory from malloc, whose addresses say nothing of a GPU's.)
//
// An allocation that does not fit is not an error: the report says so. Errors are negative sizes, an ID that is
// allocated already or is not, and a negative capacity.
func Replay(events []Event, capacity int64) (Report, error) {
	if capacity < 0 {
		return Report{}, fmt.Errorf("residual: a memory of %d bytes: give at least 1, or 0 for no end", capacity)
	}
	var r Report
	var heap []block // in the order of addresses
	for i, e := range events {
		at := slices.IndexFunc(heap, func(b block) bool { return b.id == e.ID })
		switch {
		case e.Free && at < 0:
			return Report{}, fmt.Errorf("residual: event %d frees allocation %d, which there is not", i, e.ID)
		case e.Free:
			r.Used -= heap[at].bytes
			heap = slices.Delete(heap, at, at+1)
			continue
		case at >= 0:
			return Report{}, fmt.Errorf("residual: event %d is allocation %d, which there is already: "+
				"give each an ID of its own", i, e.ID)
		case e.Bytes < 0:
			return Report{}, fmt.Errorf("residual: event %d allocates %d bytes: give at least 0", i, e.Bytes)
		}
		b := block{id: e.ID, bytes: e.Bytes}
		place := 0
		for ; place < len(heap) && heap[place].address-b.address < b.bytes; place++ {
			b.address = heap[place].end()
		}
		if capacity > 0 && capacity-b.address < b.bytes {
			r.Failed, r.At, r.Asked = true, i, e.Bytes
			break
		}
		if math.MaxInt64-b.address < b.bytes {
			return Report{}, fmt.Errorf("residual: event %d allocates %d bytes at %d, which nobody can count: give a capacity",
				i, e.Bytes, b.address)
		}
		heap = slices.Insert(heap, place, b)
		r.Used += b.bytes
		r.Peak, r.Highest = max(r.Peak, r.Used), max(r.Highest, b.end())
	}
	end := capacity
	if end == 0 {
		end = r.Highest
	}
	last := int64(0)
	for _, b := range append(heap, block{address: end}) {
		r.Largest = max(r.Largest, b.address-last)
		last = b.end()
	}
	r.Free = end - r.Used
	return r, nil
}

// block is an allocation at an address.
type block struct {
	id             int
	address, bytes int64
}

func (b block) end() int64 { return b.address + b.bytes }

// WithRegion returns the events with all that lives long in one allocation, made before everything else and never
// freed: a region, of the bytes that first fit needs for these allocations alone. Where none lives long the events
// are the same. Its errors are Replay's.
func WithRegion(events []Event) ([]Event, error) {
	if _, err := Replay(events, 0); err != nil {
		return nil, err
	}
	long := map[int]bool{} // allocations now
	var inside, others []Event
	unused := 0
	for _, e := range events {
		unused = max(unused, e.ID+1)
		if !e.Free {
			long[e.ID] = e.Long
		}
		if long[e.ID] {
			inside = append(inside, e)
		} else {
			others = append(others, e)
		}
	}
	if len(inside) == 0 {
		return others, nil
	}
	region, err := Replay(inside, 0)
	if err != nil {
		return nil, err
	}
	return slices.Concat([]Event{{ID: unused, Bytes: region.Highest, Long: true}}, others), nil
}
