package optim

import (
	"slices"

	"github.com/gomlx/gomlx/core/graph"
)

// encode quantises a part of a tensor in blocks: codes of the part's dimensions, and the largest absolute value of each block.
func (p piece) encode(x *graph.Node, table [256]float32, block int) (codes, largest *graph.Node) {
	codes, largest = encode(p.lines(x), table, block)
	return p.unlines(codes), graph.Reshape(largest, p.scales(block)...)
}

// decode is what encode's results stand for.
func (p piece) decode(codes, largest *graph.Node, table [256]float32, block int) *graph.Node {
	return p.unlines(decode(p.lines(codes), largest, table, block))
}

// scales are the dimensions of a part's scales: a vector, or a matrix where each index of an axis has blocks of its own.
func (p piece) scales(block int) []int {
	dims, own := p.part.dims(p.whole), p.part.own(p.whole)
	if own < 0 {
		return []int{blocks(product(dims), block)}
	}
	return []int{dims[own], blocks(product(slices.Delete(slices.Clone(dims), own, own+1)), block)}
}

// lines lays a part out as a matrix, each of whose rows has blocks of its own: one row, or a row for each index of the
// axis whose indices the ranks have in any order. unlines is the other way.
func (p piece) lines(x *graph.Node) *graph.Node {
	dims, own := p.part.dims(p.whole), p.part.own(p.whole)
	if own < 0 {
		return graph.Reshape(x, 1, product(dims))
	}
	return graph.Reshape(graph.TransposeAllAxes(x, first(own, len(dims))...), dims[own], product(dims)/dims[own])
}

func (p piece) unlines(x *graph.Node) *graph.Node {
	dims, own := p.part.dims(p.whole), p.part.own(p.whole)
	if own < 0 {
		return graph.Reshape(x, dims...)
	}
	order := first(own, len(dims))
	moved, back := make([]int, len(dims)), make([]int, len(dims))
	for to, from := range order {
		moved[to], back[from] = dims[from], to
	}
	return graph.TransposeAllAxes(graph.Reshape(x, moved...), back...)
}

// first lists the axes of a tensor of that rank, one of them before the others.
func first(axis, rank int) []int {
	axes := []int{axis}
	for a := range rank {
		if a != axis {
			axes = append(axes, a)
		}
	}
	return axes
}
