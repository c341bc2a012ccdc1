package group

import (
	"errors"
	"fmt"
	"unsafe"
)

// Check returns an error if the call is invalid for this rank of a group of this size,
// whatever the other ranks do. It is for implementations of [Group].
func (c *Call) Check(rank, size int) error {
	switch {
	case c.Kind > KindSplit:
		return fmt.Errorf("there is no %v", c.Kind)
	case c.Kind == KindSplit && c.split == nil:
		return errors.New("a split is not made by Do or Start: call the group's Split")
	case c.Kind == KindBarrier || c.Kind == KindSplit:
		return nil
	}
	if c.Type.Size() == 0 {
		return fmt.Errorf("there is no %v", c.Type)
	}
	if c.Kind != KindAllToAll && (c.InCounts != nil || c.OutCounts != nil) {
		return fmt.Errorf("%v has no counts", c.Kind)
	}
	if err := c.checkPeer(rank, size); err != nil {
		return err
	}
	if c.reduces() {
		if int(c.Op) >= len(opNames) {
			return fmt.Errorf("there is no %v", c.Op)
		}
		if c.Op == Mean && (c.Type == Int32 || c.Type == Int64 || c.Type == Uint8) {
			return fmt.Errorf("the mean of %v is not a whole number: take the sum, or convert to a float type", c.Type)
		}
	}
	for _, b := range [...]Buffer{c.In, c.Out} {
		if b.Len < 0 || b.Data == nil && b.Len > 0 {
			return fmt.Errorf("a buffer of %d elements at %p", b.Len, b.Data)
		}
	}
	return c.checkLengths(rank, size)
}

func (c *Call) checkPeer(rank, size int) error {
	what := "root"
	switch c.Kind {
	case KindSend, KindRecv:
		what = "peer"
		if c.Peer == rank {
			return fmt.Errorf("rank %d cannot %v to or from itself", rank, c.Kind)
		}
	case KindBroadcast, KindReduce, KindGather, KindScatter:
	default:
		return nil
	}
	if c.Peer < 0 || c.Peer >= size {
		return fmt.Errorf("the %s is rank %d, and the group has ranks 0 to %d", what, c.Peer, size-1)
	}
	return nil
}

// checkLengths checks the lengths of In and Out, and that they share no memory except
// where an operation may work in place.
func (c *Call) checkLengths(rank, size int) error {
	in, out := c.In, c.Out
	part := -1 // which part of the larger buffer the smaller may be
	switch c.Kind {
	case KindSend, KindRecv:
		return nil
	case KindBroadcast, KindReduce, KindAllReduce:
		if in != out {
			return fmt.Errorf("%v works in place: its in and out must be one buffer", c.Kind)
		}
		return nil
	case KindGather, KindScatter:
		if rank != c.Peer {
			return nil // one of the buffers is not used
		}
		part = rank
	case KindAllGather, KindReduceScatter:
		part = rank
	case KindAllToAll:
		if c.InCounts != nil || c.OutCounts != nil {
			if err := checkCounts("in", in, c.InCounts, size); err != nil {
				return err
			}
			if err := checkCounts("out", out, c.OutCounts, size); err != nil {
				return err
			}
		} else if in.Len != out.Len || in.Len%size != 0 {
			return fmt.Errorf("in has %d elements and out %d; want one length that %d ranks divide", in.Len, out.Len, size)
		}
	}
	small, large, names := in, out, [2]string{"in", "out"}
	if c.Kind == KindScatter || c.Kind == KindReduceScatter {
		small, large, names = out, in, [2]string{"out", "in"}
	}
	if part >= 0 && large.Len != size*small.Len {
		return fmt.Errorf("%s has %d elements and %s %d; want %d times as many, one part for each rank",
			names[0], small.Len, names[1], large.Len, size)
	}
	bytes := c.Type.Size()
	if !overlap(small, large, bytes) || part >= 0 && small.Data == unsafe.Add(large.Data, part*small.Len*bytes) {
		return nil
	}
	if part < 0 {
		return fmt.Errorf("in and out share memory; %v does not work in place", c.Kind)
	}
	return fmt.Errorf("%s shares memory with %s, and is not part %d of it", names[0], names[1], part)
}

func checkCounts(what string, b Buffer, counts []int, size int) error {
	if len(counts) != size {
		return fmt.Errorf("%d %s-counts for %d ranks", len(counts), what, size)
	}
	sum := 0
	for rank, count := range counts {
		if count < 0 || count > b.Len {
			return fmt.Errorf("the %s-count of rank %d is %d, and %s has %d elements", what, rank, count, what, b.Len)
		}
		sum += count
	}
	if sum != b.Len {
		return fmt.Errorf("the %s-counts add up to %d, and %s has %d elements", what, sum, what, b.Len)
	}
	return nil
}

// overlap reports whether two buffers of elements of that size share memory.
func overlap(a, b Buffer, bytes int) bool {
	x, y := uintptr(a.Data), uintptr(b.Data)
	return a.Len > 0 && b.Len > 0 && x < y+uintptr(b.Len*bytes) && y < x+uintptr(a.Len*bytes)
}

// reduces reports whether the call has a reduction.
func (c *Call) reduces() bool {
	return c.Kind == KindReduce || c.Kind == KindAllReduce || c.Kind == KindReduceScatter
}

// Elements is the number of elements that all ranks must agree on: the length of the buffer, or in a gather,
// all-gather, scatter or reduce-scatter of one rank's part. Of an all-to-all it is the length of this rank's input.
func (c *Call) Elements() int {
	if c.Kind == KindRecv || c.Kind == KindScatter || c.Kind == KindReduceScatter {
		return c.Out.Len
	}
	return c.In.Len
}
