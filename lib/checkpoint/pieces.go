package checkpoint

import (
	"encoding/binary"
	"fmt"
	"iter"
	"slices"
)

// maxCorners limits the memory and time of checking a tensor's pieces: 262 144 pieces of a matrix.
const maxCorners = 1 << 20

// checkTiling returns an error unless the boxes, each inside of the shape, cover every element exactly once.
//
// A box is a signed sum of orthants, one at each of its corners, plus where an even number of the corner's coordinates
// are upper ends and minus where an odd number are. Orthants at different points are linearly independent. So boxes
// tile the shape if and only if the signed counts of their corners are those of the shape: no pairs need be compared.
func checkTiling(shape []int, pieces []piece) error {
	if len(pieces) == 1 && slices.Equal(pieces[0].Size, shape) {
		return nil
	}
	if len(shape) > 20 || len(pieces) > maxCorners>>len(shape) {
		return fmt.Errorf("%d pieces with %d axes are more than this program supports: write fewer", len(pieces),
			len(shape))
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

// boxes cuts a range of a tensor's elements in row-major order, length of them starting at from, into boxes, in order.
// There are at most 2·rank-1 of them, or one for a scalar: from the innermost axis out, a box up to the end of each
// axis, as far out as the range is long, and then a box for the rest of each axis on the way back.
func boxes(shape []int, from, length int) []piece {
	if length == product(shape) {
		return []piece{{Start: make([]int, len(shape)), Size: append([]int{}, shape...)}}
	}
	strides, stride := make([]int, len(shape)), 1
	for axis, d := range slices.Backward(shape) {
		strides[axis] = stride
		stride *= d
	}
	var cut []piece
	for end := from + length; from < end; {
		// The outermost axis with a full index from here on; the innermost always has one.
		axis := slices.IndexFunc(strides, func(stride int) bool { return from%stride == 0 && end-from >= stride })
		p := piece{Start: make([]int, len(shape)), Size: slices.Clone(shape)}
		rest := from
		for i, stride := range strides {
			p.Start[i], rest = rest/stride, rest%stride
			if i < axis {
				p.Size[i] = 1
			}
		}
		p.Size[axis] = min((end-from)/strides[axis], shape[axis]-p.Start[axis])
		cut = append(cut, p)
		from += product(p.Size)
	}
	return cut
}

func product(sizes []int) int {
	n := 1
	for _, d := range sizes {
		n *= d
	}
	return n
}

// span returns the row-major index in the tensor of the piece's first element, and the index after its last.
func (p piece) span(shape []int) (first, end int) {
	for axis, d := range shape {
		first = first*d + p.Start[axis]
		end = end*d + p.Start[axis] + p.Size[axis] - 1
	}
	return first, end + 1
}

// runs yields the contiguous ranges of the piece in the tensor, in order: offset and length in elements.
func (p piece) runs(shape []int) iter.Seq2[int, int] {
	return func(yield func(int, int) bool) {
		// A range spans the last axes that the piece covers fully, and the one before them.
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
