package expert

import (
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/autodiff"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/xla"
)

// Grouped multiplies the rows of x (M,C) by the matrices of their groups, w (E,C,H). Group e is the counts[e] rows
// (int32) after group e−1. The result is (M,H); rows after the last group are zeros, and what x has there does not
// matter. Time is proportional to the rows that are counted, not to M.
//
// On CPUs, for float32 and half types without a precision of matmuls, it and its gradients are C kernels. Elsewhere
// they are loops over groups and, in each, over blocks of rows: then scaled matmuls scale each block as a tensor of its
// own, and the gradient by w is the sum, in float32, of those of blocks, each in w's type. It panics if the shapes do
// not fit.
func Grouped(x, w, counts *graph.Node, matmul precision.Matmul) *graph.Node {
	xs, ws, n := x.Shape(), w.Shape(), counts.Shape()
	check(xs.Rank() == 2 && ws.Rank() == 3 && n.Rank() == 1 && xs.Dim(1) == ws.Dim(1) && n.Dim(0) == ws.Dim(0) &&
		xs.DType == ws.DType && n.DType == dtypes.Int32, "Grouped of rows %s, matrices %s and counts %s: want (M,C), "+
		"(E,C,H) in one type and (E) in int32", xs, ws, n)
	result := shapes.Make(xs.DType, xs.Dim(0), ws.Dim(2))
	kernels := callsKernels(x, w, matmul)
	return autodiff.Custom([]*graph.Node{x, w, counts},
		func(in []*graph.Node) []*graph.Node {
			if kernels {
				return []*graph.Node{call(byMatrices, result, in...)}
			}
			return []*graph.Node{loops{in[0], in[1], in[2], matmul}.forward()}
		},
		func(in, _, v []*graph.Node) []*graph.Node {
			x, w, counts := in[0], in[1], in[2]
			if kernels {
				return []*graph.Node{call(byTransposed, x.Shape(), v[0], w, counts),
					call(byRows, w.Shape(), x, v[0], counts), nil}
			}
			dx, dw := loops{x, w, counts, matmul}.backward(v[0])
			return []*graph.Node{dx, dw, nil}
		})[0]
}

// loops is a call of Grouped in loops that any device runs.
type loops struct {
	x, w, counts *graph.Node
	matmul       precision.Matmul
}

// rows is the number of rows of a block: half of what a group has on average, so that little of the last block of a
// group is empty, in bounds between which neither the loops nor what they copy take longer than the matmuls.
func (l loops) rows() int {
	const least, most = 32, 512
	rows := l.x.Shape().Dim(0)
	return min(rows, max(least, min(most, rows/(2*l.w.Shape().Dim(0)))))
}

func (l loops) forward() *graph.Node {
	y := graph.Zeros(l.x.Graph(), shapes.Make(l.x.DType(), l.x.Shape().Dim(0), l.w.Shape().Dim(2)))
	return l.groups([]*graph.Node{y}, func(_, w *graph.Node, b blocks, all []*graph.Node) []*graph.Node {
		return b.count(all, func(b block, all []*graph.Node) []*graph.Node {
			return []*graph.Node{b.put(all[0], l.dot(b.of(l.x), w))}
		})
	})[0]
}

func (l loops) backward(dy *graph.Node) (dx, dw *graph.Node) {
	begin := []*graph.Node{graph.ZerosLike(l.x), graph.ZerosLike(l.w), dy}
	all := l.groups(begin, func(group, w *graph.Node, b blocks, all []*graph.Node) []*graph.Node {
		dy := all[2]
		sum := graph.ZerosLike(precision.Widen(w))
		inner := b.count([]*graph.Node{all[0], sum}, func(b block, all []*graph.Node) []*graph.Node {
			dx, dw := l.matmul.DotGradients(b.of(l.x), w, b.of(dy))
			return []*graph.Node{b.put(all[0], dx), graph.Add(all[1], precision.Widen(dw))}
		})
		dw := graph.InsertAxes(graph.ConvertDType(inner[1], w.DType()), 0)
		return []*graph.Node{inner[0], graph.DynamicUpdateSlice(all[1], dw, l.at(group)), dy}
	})
	return all[0], all[1]
}

func (l loops) dot(x, w *graph.Node) *graph.Node {
	return l.matmul.Dot(x, []int{1}, nil, w, []int{0}, nil)
}

// at is where the matrix of a group begins.
func (l loops) at(group *graph.Node) []*graph.Node {
	zero := graph.ZerosLike(group)
	return []*graph.Node{group, zero, zero}
}

// groups runs body for each group, with its number, its matrix (C,H) and its rows, and the state that it returns. GoMLX
// does not see which outside nodes a loop's body uses, so these are also passed through the loop's state, unchanged.
func (l loops) groups(state []*graph.Node, body func(group, w *graph.Node, b blocks,
	state []*graph.Node) []*graph.Node) []*graph.Node {
	g := l.x.Graph()
	n, e := len(state), l.w.Shape().Dim(0)
	ends := graph.CumSum(l.counts, 0)
	zero := graph.Const(g, int32(0))
	begin := append([]*graph.Node{zero}, state...)
	begin = append(begin, zero, l.x, l.w, ends)
	return xla.While(begin, func(s []*graph.Node) *graph.Node {
		return graph.LessThan(s[0], graph.Const(s[0].Graph(), int32(e)))
	}, func(s []*graph.Node) []*graph.Node {
		group, first := s[0], s[n+1]
		w := graph.DynamicSlice(l.w, l.at(group), []int{1, l.w.Shape().Dim(1), l.w.Shape().Dim(2)})
		end := graph.Reshape(graph.DynamicSlice(ends, []*graph.Node{group}, []int{1}))
		next := body(group, graph.Squeeze(w, 0), blocks{first, end, l.rows()}, s[1:n+1])
		out := append([]*graph.Node{graph.AddScalar(group, 1)}, next...)
		return append(append(out, end), s[n+2:]...)
	})[1 : n+1]
}

// blocks are the rows of a group, in blocks.
type blocks struct {
	first, end *graph.Node // int32
	rows       int         // of a block
}

// count runs body for each block, with the state that it returns.
func (b blocks) count(state []*graph.Node, body func(b block, state []*graph.Node) []*graph.Node) []*graph.Node {
	return xla.While(append([]*graph.Node{b.first}, state...), func(s []*graph.Node) *graph.Node {
		return graph.LessThan(s[0], b.end)
	}, func(s []*graph.Node) []*graph.Node {
		return append([]*graph.Node{graph.AddScalar(s[0], b.rows)}, body(block{s[0], b.end, b.rows}, s[1:])...)
	})[1:]
}

// block is the rows from first on, to before end. The last block of all rows begins before its first row, so that it
// ends with the last one.
type block struct {
	first, end *graph.Node
	rows       int
}

func (b block) start(x *graph.Node) []*graph.Node {
	last := graph.Const(x.Graph(), int32(x.Shape().Dim(0)-b.rows))
	return []*graph.Node{graph.Min(b.first, last), graph.ZerosLike(b.first)}
}

// where returns rows of x that are the block's, and others elsewhere.
func (b block) where(start, x, others *graph.Node) *graph.Node {
	row := graph.Add(graph.Iota(x.Graph(), shapes.Make(dtypes.Int32, b.rows, 1), 0), start)
	mine := graph.LogicalAnd(graph.GreaterOrEqual(row, b.first), graph.LessThan(row, b.end))
	return graph.Where(graph.BroadcastToDims(mine, x.Shape().Dimensions...), x, others)
}

// of returns the block of x, with zeros for rows that are not its own.
func (b block) of(x *graph.Node) *graph.Node {
	start := b.start(x)
	rows := graph.DynamicSlice(x, start, []int{b.rows, x.Shape().Dim(1)})
	return b.where(start[0], rows, graph.ZerosLike(rows))
}

// put returns x with the block's rows replaced.
func (b block) put(x, rows *graph.Node) *graph.Node {
	start := b.start(x)
	old := graph.DynamicSlice(x, start, []int{b.rows, x.Shape().Dim(1)})
	return graph.DynamicUpdateSlice(x, b.where(start[0], rows, old), start)
}
