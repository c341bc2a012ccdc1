package checkpoint

import (
	"encoding/binary"
	"fmt"
	"iter"
	"slices"
)

// maxCorners bounds the memory and time that checking a tensor's pieces takes: 262 144 pieces of a matrix.
const maxCorners = 1 << 20

// checkTiling returns an error unless the boxes, each inside of the shape, cover every element of it exactly once.
//
// A box is a signed sum of orthants, one at each of its corners, plus where an even number of the corner's coordinates
// are upper ends and minus where an odd number are. Orthants at different points are linearly independent. So boxes tile
// the whole if and only if the signed counts of their corners are those of the whole: no pair of boxes need be compared.
func checkTiling(shape []int, pieces []piece) error {
	if len(pieces) == 1 && slices.Equal(pieces[0].Size, shape) {
		return nil
	}
	if len(shape) > 20 || len(pieces) > maxCorners>>len(shape) {
		return fmt.Errorf("%d pieces of %d axes are more than this program takes", len(pieces), len(shape))
	}
	corners := map[string]int{}
	var point []byte
	count := func(start, size []int, times int) {
		for upper := range 1 << len(shape) {
			sign := times
			point = point[:0]
			for axis := range shape {
				at := start[axis]
				if upper>>axis&1 == 1 {
					at, sign = at+size[axis], -sign
				}
				point = binary.AppendUvarint(point, uint64(at))
			}
			if corners[string(point)] += sign; corners[string(point)] == 0 {
				delete(corners, string(point))
			}
		}
	}
	count(make([]int, len(shape)), shape, -1)
	for _, p := range pieces {
		count(p.Start, p.Size, 1)
	}
	if len(corners) > 0 {
		return fmt.Errorf("its %d pieces do not cover its shape %v exactly once", len(pieces), shape)
	}
	return nil
}

// runs yields where the piece lies in the tensor: offsets and lengths in elements, in the piece's own order.
func (p piece) runs(shape []int) iter.Seq2[int, int] {
	return func(yield func(int, int) bool) {
		// A run is as long as the axes behind its first one are whole.
		first, run := len(shape), 1
		for first > 0 && (first == len(shape) || p.Size[first] == shape[first]) {
			first--
			run *= p.Size[first]
		}
		index := make([]int, first)
		for {
			offset := 0
			for axis, d := range shape {
				offset = offset*d + p.Start[axis]
				if axis < first {
					offset += index[axis]
				}
			}
			if !yield(offset, run) {
				return
			}
			axis := first - 1
			for ; axis >= 0; axis-- {
				if index[axis]++; index[axis] < p.Size[axis] {
					break
				}
				index[axis] = 0
			}
			if axis < 0 {
				return
			}
		}
	}
}
