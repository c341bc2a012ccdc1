package residual

import (
	"fmt"
	"math"
	"slices"
)

// Event is an allocation of device memory, or its end.
type Event struct {
	ID    int   // of the allocation
	Bytes int64 // of an allocation; ignored if Free
	Free  bool  // the allocation ends
	Long  bool  // long-lived, as activation checkpoints and gradients are: see WithRegion
}

// Report is the result of [Replay], in bytes.
type Report struct {
	Peak    int64 // maximum of allocated bytes
	Highest int64 // highest address that was allocated

	// At the end, or when an allocation failed:
	Used    int64 // allocated
	Largest int64 // the largest free block; without a capacity, below Highest
	Free    int64 // all free blocks together

	Failed bool  // no free block was large enough for an allocation, and the replay ended there
	At     int   // the event that failed
	Asked  int64 // its size
}

// Fragmented reports whether an allocation failed although enough bytes were free.
func (r Report) Fragmented() bool { return r.Failed && r.Asked <= r.Free }

// Replay runs a sequence of allocations in a model of a device's memory of capacity bytes; 0 means unlimited. The
// allocator is first fit: it takes the first free block that is large enough, and neither rounds sizes nor moves
// blocks. Real allocators round sizes and have free lists, but leave holes between long-lived blocks, too. (XLA's CPU
// devices use malloc, whose addresses say nothing about GPUs.)
//
// An allocation that does not fit is not an error: see [Report]. Errors are negative sizes or capacity, an ID that is
// allocated twice, and a Free of an ID that is not allocated.
func Replay(events []Event, capacity int64) (Report, error) {
	if capacity < 0 {
		return Report{}, fmt.Errorf("residual: capacity is %d bytes: give at least 1, or 0 for no limit", capacity)
	}
	var r Report
	var heap []block // by address
	for i, e := range events {
		at := slices.IndexFunc(heap, func(b block) bool { return b.id == e.ID })
		switch {
		case e.Free && at < 0:
			return Report{}, fmt.Errorf("residual: event %d frees allocation %d, which does not exist", i, e.ID)
		case e.Free:
			r.Used -= heap[at].bytes
			heap = slices.Delete(heap, at, at+1)
			continue
		case at >= 0:
			return Report{}, fmt.Errorf("residual: event %d allocates ID %d, which is allocated: give each its own ID",
				i, e.ID)
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
			return Report{}, fmt.Errorf("residual: event %d allocates %d bytes at %d, which overflows an int64: give a capacity",
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

// WithRegion returns the events with all long-lived allocations replaced by one region: an allocation before everything
// else that is never freed, as large as first fit needs for the long-lived allocations alone. Without long-lived
// allocations the events are unchanged. Errors are those of [Replay].
func WithRegion(events []Event) ([]Event, error) {
	if _, err := Replay(events, 0); err != nil {
		return nil, err
	}
	long := map[int]bool{} // by allocation
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
