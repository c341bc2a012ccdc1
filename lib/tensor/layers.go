package tensor

import (
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/autodiff"
	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/fused"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
)

// Matmul multiplies x (…,in) by w (in,out) and returns (…,out), in any precision. It must support any number of tokens,
// and each token's row must depend on that token alone.
type Matmul = func(x, w *graph.Node) *graph.Node

// Columns is Megatron's column-parallel linear layer: it multiplies x by matrices that are sharded by columns. The
// device has the shard w (C,N/n) of each. x is (B,T,C), the same on each device; with Sequence it is the device's
// tokens (B,T/n,C). The results are (B,T,N/n), one for each matrix.
//
// All matrices share the communication: none in the forward pass, and one all-reduce of B·T·C elements of x's type in
// the backward pass. With Sequence it is one all-gather in the forward pass, and one all-gather and one reduce-scatter
// in the backward pass, because the gathered x is not saved (Korthikanti et al., §4.2.2). With Overlap an all-gather or
// a reduce-scatter is n−1 collective-permutes of B·T/n·C elements, and the gathered x is saved; the gradient of a
// matrix is then the sum of n matmuls, one for each chunk, in the type of the matrix.
func (t Group) Columns(x *graph.Node, ws []*graph.Node, matmul Matmul) []*graph.Node {
	check(x.Rank() == 3, "Columns: x has shape %s: want (B,T,C)", x.Shape())
	switch {
	case t.overlaps(x.Graph()):
		return t.ringColumns(x, ws, matmul)
	case t.splitsTokens(x.Graph()):
		return t.gatherColumns(x, ws, matmul)
	}
	return matmuls(t.Enter(x), ws, matmul)
}

func matmuls(x *graph.Node, ws []*graph.Node, matmul Matmul) []*graph.Node {
	ys := make([]*graph.Node, len(ws))
	for i, w := range ws {
		ys[i] = matmul(x, w)
	}
	return ys
}

// gatherColumns is Columns with Sequence. The backward pass gathers x a second time.
func (t Group) gatherColumns(x *graph.Node, ws []*graph.Node, matmul Matmul) []*graph.Node {
	return autodiff.Custom(append([]*graph.Node{x}, ws...),
		func(in []*graph.Node) []*graph.Node { return matmuls(t.Enter(in[0]), in[1:], matmul) },
		func(in, _, v []*graph.Node) []*graph.Node {
			// The barrier keeps the compiler from merging both gathers, which would save the gathered x.
			all := t.Enter(graph.StopGradient(graph.SchedulingBarrier(in[0], v[0])))
			ws := in[1:]
			for i, w := range ws { // each has its own gradient, even if it is computed from another
				ws[i] = graph.Identity(graph.StopGradient(w))
			}
			toward := graph.ScalarZero(all.Graph(), all.DType()) // the scalar to differentiate
			for i, y := range matmuls(all, ws, matmul) {
				toward = graph.Add(toward, graph.ReduceAllSum(graph.Mul(y, graph.StopGradient(v[i]))))
			}
			gradients := graph.Gradient(toward, append([]*graph.Node{all}, ws...)...)
			gradients[0] = t.Leave(gradients[0])
			return gradients
		})
}

// Rows is Megatron's row-parallel linear layer: it multiplies x (B,T,N/n), computed from the results of
// [Group.Columns], by a matrix that is sharded by rows. The device has the shard w (N/n,C). It returns the sum over the
// devices (B,T,C), the same on each; with Sequence it returns the device's tokens (B,T/n,C).
//
// The forward pass has one all-reduce of B·T·C elements, the backward pass no communication. With Sequence these are
// one reduce-scatter and one all-gather; with Overlap each is n−1 collective-permutes of B·T/n·C elements, and results
// differ by rounding. Sums are in the type of the matmul's result, as in Megatron. Add a bias after Rows, not before,
// or it is added n times.
func (t Group) Rows(x, w *graph.Node, matmul Matmul) *graph.Node {
	check(x.Rank() == 3, "Rows: x has shape %s: want (B,T,N/n)", x.Shape())
	if t.overlaps(x.Graph()) {
		return t.ringRows(x, w, matmul)
	}
	return t.Leave(matmul(x, w))
}

// Enter is Megatron's f, at the start of a tensor-parallel region: it returns x, the same on each device, and sums its
// gradients over the devices. With Sequence it is the all-gather of x (B,T/n,…) along axis 1 to (B,T,…), whose backward
// pass is the reduce-scatter.
func (t Group) Enter(x *graph.Node) *graph.Node {
	switch {
	case t.Size(x.Graph()) == 1:
		return x
	case t.Sequence:
		return collective.AllGather(x, 1, t.Axis)
	}
	return collective.F(x, t.Axis)
}

// Leave is Megatron's g, at the end of a tensor-parallel region: it sums x (B,T,…) over the devices, and each gets the
// gradient unchanged. With Sequence it is the reduce-scatter along axis 1 to (B,T/n,…), whose backward pass is the
// all-gather.
func (t Group) Leave(x *graph.Node) *graph.Node {
	switch {
	case t.Size(x.Graph()) == 1:
		return x
	case t.Sequence:
		return collective.ReduceScatter(x, collective.Sum, 1, t.Axis)
	}
	return collective.G(x, t.Axis)
}

// GoMLX derives the gradients of both rings: the gradient of a shift is the shift back. Only cutting x into chunks and
// joining them have gradients of their own (chunks, ordered): GoMLX's would add up n arrays that are mostly zeros.

// overlaps reports whether a graph uses the rings.
func (t Group) overlaps(g *graph.Graph) bool { return t.Overlap && t.splitsTokens(g) }

// ringColumns is Columns in chunks: at step s the device multiplies the tokens of rank r−s and sends them on.
func (t Group) ringColumns(x *graph.Node, ws []*graph.Node, matmul Matmul) []*graph.Node {
	n := t.Size(x.Graph())
	results := make([][]*graph.Node, len(ws)) // of each matrix, by step
	for s := range n {
		here := x
		if s < n-1 {
			x = collective.RingShift(here, 1, t.Axis)
		}
		for i, w := range ws {
			results[i] = append(results[i], matmul(here, w))
		}
	}
	ys := make([]*graph.Node, len(ws))
	for i, chunks := range results {
		ys[i] = t.ordered(chunks, 0)
	}
	return ys
}

// ringRows is Rows in chunks: the sum for the tokens of rank d starts at rank d+1 and ends at rank d. At step s rank r
// multiplies the tokens of rank r−1−s while it receives the sum that they belong to.
func (t Group) ringRows(x, w *graph.Node, matmul Matmul) *graph.Node {
	n := t.Size(x.Graph())
	check(x.Shape().Dim(1)%n == 0, "Rows: %d devices do not divide the %d tokens of x %s", n, x.Shape().Dim(1),
		x.Shape())
	var sum *graph.Node
	for s, chunk := range t.chunks(x, 1) {
		if s == 0 {
			sum = matmul(chunk, w)
			continue
		}
		sum = collective.RingShift(sum, 1, t.Axis)
		sum = graph.Add(sum, matmul(chunk, w))
	}
	return sum
}

// chunks cuts x (B,T,…) along the tokens into n chunks (B,T/n,…). On rank r chunk s has the tokens of rank r−back−s.
// Its backward pass is the function ordered.
func (t Group) chunks(x *graph.Node, back int) []*graph.Node {
	return autodiff.Custom([]*graph.Node{x}, func(in []*graph.Node) []*graph.Node { return t.cutTokens(in[0], back) },
		func(_, _, v []*graph.Node) []*graph.Node { return []*graph.Node{t.joinTokens(v, back)} })
}

// ordered joins chunks to x.
func (t Group) ordered(chunks []*graph.Node, back int) *graph.Node {
	return autodiff.Custom(chunks, func(in []*graph.Node) []*graph.Node {
		return []*graph.Node{t.joinTokens(in, back)}
	}, func(_, _, v []*graph.Node) []*graph.Node { return t.cutTokens(v[0], back) })[0]
}

func (t Group) cutTokens(x *graph.Node, back int) []*graph.Node {
	n := t.Size(x.Graph())
	dims := x.Shape().Clone().Dimensions
	dims[1] /= n
	chunks := make([]*graph.Node, n)
	for s := range chunks {
		chunks[s] = graph.DynamicSlice(x, t.starts(x, back+s, dims[1]), dims)
	}
	return chunks
}

func (t Group) joinTokens(chunks []*graph.Node, back int) *graph.Node {
	shape := chunks[0].Shape().Clone()
	length := shape.Dimensions[1]
	shape.Dimensions[1] *= len(chunks)
	x := graph.Zeros(chunks[0].Graph(), shape)
	for s, chunk := range chunks {
		x = graph.DynamicUpdateSlice(x, chunk, t.starts(x, back+s, length))
	}
	return x
}

// starts returns the indices in x (B,T,…) at which the tokens of rank r−back start, with length tokens for each rank.
func (t Group) starts(x *graph.Node, back, length int) []*graph.Node {
	g := x.Graph()
	n := t.Size(g)
	starts := make([]*graph.Node, x.Rank())
	for i := range starts {
		starts[i] = graph.Const(g, int32(0))
	}
	rank := graph.ModScalar(graph.AddScalar(t.Rank(g), 2*n-back), n) // back is less than 2n
	starts[1] = graph.MulScalar(rank, length)
	return starts
}

// Replicated sums the gradients of parameters that every device has but, with Sequence, uses only for its tokens: of
// normalizations, biases after [Group.Rows], position embeddings. It returns the same nodes; one all-reduce for each
// type sums their gradients over the devices, in that type. Without Sequence the gradients are complete on each device,
// and it adds nothing.
func (t Group) Replicated(ps []*graph.Node) []*graph.Node {
	if len(ps) == 0 || !t.splitsTokens(ps[0].Graph()) {
		return slices.Clone(ps)
	}
	return autodiff.Custom(ps, func(in []*graph.Node) []*graph.Node { return in },
		func(_, _, v []*graph.Node) []*graph.Node { return collective.AllReduceEach(v, collective.Sum, t.Axis) })
}

// SumCopies sums the gradients of a parameter whose indices are partly replicated on several ranks, such as key and
// value heads when there are fewer heads than ranks ([Heads]), so that the replicas stay equal. It returns x, the
// rank's shard along an axis (−1 is the last); the gradient at each replicated index is the sum over the ranks that
// have it. It returns x unchanged if the cut is nil or no index is replicated.
//
// The backward pass has one all-reduce, in x's type, of the replicated columns. It panics if the cut is not for this
// group or does not match x.
func (t Group) SumCopies(x *graph.Node, axis int, cut *params.Cut) *graph.Node {
	n := t.Size(x.Graph())
	if cut == nil || n == 1 {
		return x
	}
	check(axis >= -x.Rank() && axis < x.Rank(), "SumCopies: %s has no axis %d", x.Shape(), axis)
	axis = (axis + x.Rank()) % x.Rank()
	check(cut.Ranks() == n, "SumCopies: the cut is for %d ranks and the group has %d", cut.Ranks(), n)
	check(x.Shape().Dim(axis) == cut.Length(), "SumCopies: x has shape %s, but a rank's shard along axis %d has "+
		"length %d", x.Shape(), axis, cut.Length())
	where, which := replicated(cut)
	if len(where[0]) == 0 {
		return x
	}
	return graph.IdentityWithCustomGradient(x, func(_, v *graph.Node) *graph.Node {
		g := v.Graph()
		mine := func(table [][]int32) *graph.Node { // the rank's row
			return graph.Reshape(collective.Part(graph.Const(g, table), 0, t.Axis), -1)
		}
		v = swapped(v, axis)
		sums := collective.AllReduce(rowsAt(v, mine(where)), collective.Sum, t.Axis)
		at := mine(which)
		has := graph.GreaterOrEqual(at, graph.Const(g, int32(0)))
		return swapped(graph.Where(broadcastLeft(has, v), rowsAt(sums, at), v), axis)
	})
}

// replicated numbers the indices that several ranks have. where[rank][number] is the position of that index in the
// rank's shard, or −1; which[rank][position] is the number of the index at a position, or −1.
func replicated(cut *params.Cut) (where, which [][]int32) {
	holders := map[int]int{}
	for _, indices := range cut.Index {
		for _, i := range indices {
			if i >= 0 {
				holders[i]++
			}
		}
	}
	numbers := map[int]int32{} // of the replicated indices, in the order in which ranks list them
	for _, indices := range cut.Index {
		for _, i := range indices {
			if _, known := numbers[i]; !known && holders[i] > 1 {
				numbers[i] = int32(len(numbers))
			}
		}
	}
	where, which = make([][]int32, cut.Ranks()), make([][]int32, cut.Ranks())
	for r, indices := range cut.Index {
		where[r], which[r] = make([]int32, len(numbers)), make([]int32, len(indices))
		for number := range where[r] {
			where[r][number] = -1
		}
		for place, i := range indices {
			which[r][place] = -1
			if number, several := numbers[i]; several {
				where[r][number], which[r][place] = int32(place), number
			}
		}
	}
	return where, which
}

// rowsAt gathers rows of x along axis 0, with zeros for −1.
func rowsAt(x, places *graph.Node) *graph.Node {
	zero := graph.Const(x.Graph(), int32(0))
	rows := graph.Gather(x, graph.ExpandAxes(graph.Max(places, zero), -1))
	return graph.Where(broadcastLeft(graph.GreaterOrEqual(places, zero), rows), rows, graph.ZerosLike(rows))
}

// broadcastLeft broadcasts x, whose axes are the first of like's, to like's shape.
func broadcastLeft(x, like *graph.Node) *graph.Node {
	dims := slices.Repeat([]int{1}, like.Rank())
	copy(dims, x.Shape().Dimensions)
	return graph.BroadcastToDims(graph.Reshape(x, dims...), like.Shape().Dimensions...)
}

// swapped transposes an axis with the first one.
func swapped(x *graph.Node, axis int) *graph.Node {
	if axis == 0 {
		return x
	}
	return graph.Transpose(x, 0, axis)
}

// Embed looks up token embeddings in a table that is sharded by rows with [Padded]: the device has the shard table
// (⌈V/n⌉,C). The tokens (B,T), of any integer type, are the same on each device. The result is (B,T,C) in the table's
// type; with Sequence it is the device's tokens (B,T/n,C).
//
// Each device looks up the tokens of its shard and has zeros for the others; one all-reduce, or reduce-scatter, sums
// over the devices, which is exact (Shoeybi et al., §3). The gradients of a row accumulate in float32 (float64 for
// float64). A token outside the vocabulary gives zeros, but on one device the nearest row, as GoMLX's Gather does.
func (t Group) Embed(table, tokens *graph.Node) *graph.Node {
	check(table.Rank() == 2 && tokens.Rank() == 2 && tokens.DType().IsInt(),
		"Embed: a table %s and tokens %s: want (V/n,C) and integers (B,T)", table.Shape(), tokens.Shape())
	if t.Size(table.Graph()) == 1 {
		return graph.ConvertDType(graph.Gather(precision.Widen(table), graph.ExpandAxes(tokens, -1)), table.DType())
	}
	rows := table.Shape().Dim(0)
	place := graph.Sub(in64(tokens), t.start(table.Graph(), rows)) // row in the shard
	here := within(place, rows)
	// (B,T,C)
	found := graph.Gather(precision.Widen(table), graph.ExpandAxes(graph.Where(here, place, graph.ZerosLike(place)),
		-1))
	found = graph.Where(broadcastLeft(here, found), found, graph.ZerosLike(found))
	return t.Leave(graph.ConvertDType(found, table.DType()))
}

// CrossEntropy returns the loss −log softmax(logits)[target] of each position, in nats, with the shape of targets
// (B,T). It is in float32 for half-precision logits, else in their type, and the same on each device. The logits
// (B,T,⌈V/n⌉) are sharded by vocabulary with [Padded]; the padding is ignored. Targets have any integer type; one
// outside the vocabulary has loss and gradient 0.
//
// No device ever has all logits. Two all-reduces send three numbers for each position: the largest logit m, then the
// sum of e^(logit−m) and the target's logit−m (Shoeybi et al., §3). The backward pass needs no communication.
func (t Group) CrossEntropy(logits, targets *graph.Node, vocab int) *graph.Node {
	g := logits.Graph()
	n, columns := t.Size(g), logits.Shape().Dim(-1)
	check(logits.Rank() > 1 && slices.Equal(logits.Shape().Dimensions[:logits.Rank()-1], targets.Shape().Dimensions),
		"CrossEntropy: logits have shape %s and targets %s: want (B,T,V/n) and (B,T)", logits.Shape(), targets.Shape())
	check(columns == (vocab+n-1)/n, "CrossEntropy: %d columns of logits on each of %d devices for a "+
		"vocabulary of %d: want %d", columns, n, vocab, (vocab+n-1)/n)
	logits = precision.Widen(logits)
	if n == 1 {
		return fused.CrossEntropy(logits, targets)
	}

	start := t.start(g, columns)
	column := graph.Iota(g, shapes.Make(dtypes.Int64, logits.Shape().Dimensions...), -1)
	if n*columns > vocab {
		padding := graph.GreaterOrEqual(graph.Add(column, start), graph.Const(g, int64(vocab)))
		logits = graph.Where(padding, graph.BroadcastToShape(graph.Infinity(g, logits.DType(), -1), logits.Shape()),
			logits)
	}
	targets = in64(targets)
	known := within(targets, vocab)
	place := graph.Where(known, graph.Sub(targets, start), graph.Neg(graph.OnesLike(targets)))
	hit := graph.Equal(column, graph.ExpandAxes(place, -1))

	largest := collective.AllReduce(graph.ReduceMax(graph.StopGradient(logits), -1), collective.Max, t.Axis)
	logits = graph.Sub(logits, graph.ExpandAxes(graph.StopGradient(largest), -1))
	sum := graph.ReduceSum(graph.Exp(logits), -1)
	target := graph.ReduceSum(graph.Where(hit, logits, graph.ZerosLike(logits)), -1)
	both := collective.G(graph.Stack([]*graph.Node{sum, target}, 0), t.Axis)
	at := func(i int) *graph.Node { return graph.Squeeze(graph.Slice(both, graph.AxisElem(i)), 0) }
	loss := graph.Sub(graph.Log(at(0)), at(1))
	return graph.Where(known, loss, graph.ZerosLike(loss))
}

// start returns the device's first index, an int64 scalar, with that many indices on each device.
func (t Group) start(g *graph.Graph, each int) *graph.Node {
	return graph.MulScalar(in64(t.Rank(g)), each)
}

// within returns which of x are from 0 to size−1.
func within(x *graph.Node, size int) *graph.Node {
	g := x.Graph()
	return graph.LogicalAnd(graph.GreaterOrEqual(x, graph.Const(g, int64(0))),
		graph.LessThan(x, graph.Const(g, int64(size))))
}

func in64(x *graph.Node) *graph.Node { return graph.ConvertDType(x, dtypes.Int64) }
