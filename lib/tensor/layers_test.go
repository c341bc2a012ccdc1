package tensor_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/tensor"
	"github.com/shardbook/shardbook/lib/xla"
)

// A group along an axis of one device, and one with no axis, add nothing to the graph.
func TestAlone(t *testing.T) {
	mesh := must.Value(devicetest.Open(t, 1).Mesh(xla.Axis("tensor", 1)))
	groups := []tensor.Group{{}, {Axis: "tensor"}, {Axis: "tensor", Sequence: true, Overlap: true}}
	p := onRanks(t, mesh, 0, 2, func(in []*graph.Node) []*graph.Node {
		for _, group := range groups {
			if same := []*graph.Node{group.Enter(in[0]), group.Leave(in[0]), group.Tokens(in[0], 1),
				group.Replicated(in)[0], group.SumCopies(in[0], 0, &params.Cut{})}; slices.ContainsFunc(same,
				func(x *graph.Node) bool { return x != in[0] }) {
				t.Errorf("%+v adds nodes to the graph of one device", group)
			}
			if group.Size(in[0].Graph()) != 1 || group.Alone() != (group.Axis == "") {
				t.Errorf("%+v has %d devices, alone %t", group, group.Size(in[0].Graph()), group.Alone())
			}
			if group.Rank(in[0].Graph()).DType() != dtypes.Int32 {
				t.Errorf("%+v: the rank is not an int32", group)
			}
		}
		return in[:1]
	})
	must.Do(t, p.Prepare(zeros(1, 1, 2, 3), zeros(1, 3)))
}

func TestErrors(t *testing.T) {
	mesh := must.Value(devicetest.Open(t, 2).Mesh(xla.Axis("tensor", 2)))
	group := tensor.Group{Axis: "tensor"}
	ring := tensor.Group{Axis: "tensor", Sequence: true, Overlap: true}
	cut := &params.Cut{Index: [][]int{{0, 1}, {0, 2}}}
	for _, c := range []struct {
		want string
		of   func(x *graph.Node) *graph.Node // (3,5)
	}{
		{"want (B,T,C)", func(x *graph.Node) *graph.Node { return group.Columns(x, []*graph.Node{x}, dot)[0] }},
		{"want (B,T,N/n)", func(x *graph.Node) *graph.Node { return group.Rows(x, x, dot) }},
		{"2 devices do not divide the 3 tokens", func(x *graph.Node) *graph.Node {
			return ring.Rows(graph.ExpandAxes(x, 0), x, dot)
		}},
		{"no axis \"model\"", func(x *graph.Node) *graph.Node { return tensor.Group{Axis: "model"}.Enter(x) }},
		{"axis 0 of", func(x *graph.Node) *graph.Node { return ring.Tokens(x, 0) }},
		{"along axis 0 has length 2", func(x *graph.Node) *graph.Node { return group.SumCopies(x, 0, cut) }},
		{"the cut is for 3 ranks and the group has 2", func(x *graph.Node) *graph.Node {
			return group.SumCopies(x, 0, &params.Cut{Index: [][]int{{0}, {0}, {0}}})
		}},
		{"has no axis 2", func(x *graph.Node) *graph.Node { return group.SumCopies(x, 2, cut) }},
		{"want (V/n,C) and integers", func(x *graph.Node) *graph.Node { return group.Embed(x, x) }},
		{"want (B,T,V/n) and (B,T)", func(x *graph.Node) *graph.Node { return group.CrossEntropy(x, x, 10) }},
		{"for a vocabulary of 8: want 4", func(x *graph.Node) *graph.Node {
			return group.CrossEntropy(x, graph.Zeros(x.Graph(), shapes.Make(dtypes.Int32, 3)), 8)
		}},
	} {
		p := must.Value(xla.Compile(mesh, c.of, xla.In(xla.Replicated()).Gives(xla.Replicated())))
		if err := p.Prepare(zeros(3, 5)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q in it", err, c.want)
		}
		p.Close()
	}
}

// For random cuts along each axis, the gradient at an index is the sum over all ranks that have it, and the values do
// not change.
func TestSumCopies(t *testing.T) {
	const n = 4
	group := tensor.Group{Axis: "tensor"}
	mesh := must.Value(devicetest.Open(t, n).Mesh(xla.Axis("tensor", n)))
	r := rand.New(rand.NewPCG(7, 8))
	var cuts []*params.Cut
	var args []any
	var values, weights []array // unsharded; stacked by rank
	for _, s := range []struct{ size, length int }{{6, 3}, {5, 4}, {20, 5}, {1, 1}} {
		for axis := range 3 {
			cut := &params.Cut{Axis: axis}
			for rank := range n {
				indices := r.Perm(s.size)[:s.length]
				if rank > 0 && s.length > 1 {
					indices[r.IntN(s.length)] = -1
				}
				cut.Index = append(cut.Index, indices)
			}
			dims := []int{2, 3, 2}
			dims[axis] = s.size
			values, cuts = append(values, random(r, 1, dims...)), append(cuts, cut)
			dims = append([]int{n}, dims...)
			dims[1+axis] = s.length
			weights = append(weights, random(r, 1, dims...))
			args = append(args, values[len(values)-1].stacked(cut, n), weights[len(weights)-1].tensor())
		}
	}
	p := onRanks(t, mesh, 0, len(args), func(in []*graph.Node) []*graph.Node {
		var out []*graph.Node
		for i, cut := range cuts {
			x := group.SumCopies(in[2*i], cut.Axis-3, cut)
			out = append(out, x, graph.Gradient(graph.ReduceAllSum(graph.Mul(x, in[2*i+1])), in[2*i])[0])
		}
		return out
	})
	got := call(t, p, args...)
	for i, cut := range cuts {
		w, dims := weights[i].values, weights[i].dims
		inner := 1
		for _, d := range dims[2+cut.Axis:] {
			inner *= d
		}
		length := dims[1+cut.Axis]
		each := len(w) / n
		var want []float64
		for rank := range n {
			for at := range each {
				index := cut.Index[rank][at/inner%length]
				sum := 0.0
				for other := range n { // at the same position along the other axes
					for place, held := range cut.Index[other] {
						if held == index && (index >= 0 || other == rank && place == at/inner%length) {
							sum += w[other*each+at+(place-at/inner%length)*inner]
						}
					}
				}
				want = append(want, sum)
			}
		}
		what := fmt.Sprintf("%v of %v", cut, values[i].dims)
		if d := distance(t, what, got[2*i+1], want, 1); !(d <= 0x1p-20) {
			t.Errorf("%s: gradients %v, want %v", what, got[2*i+1], want)
		}
		var same []float64
		for rank := range n {
			same = append(same, values[i].part(cut, rank).values...)
		}
		if d := distance(t, what, got[2*i], same, 1); d != 0 {
			t.Errorf("%s: values have changed", what)
		}
	}
}

// Only the columns that several ranks have are communicated.
func TestCopiesTraffic(t *testing.T) {
	const n, width, heads, wide = 4, 3, 4, 2
	mesh := must.Value(devicetest.Open(t, n).Mesh(xla.Axis("tensor", n)))
	for _, c := range []struct {
		keys int
		want string
	}{
		{4, "no collectives"},
		// Keys and values of two heads: 2·2·2 columns of 3 float32, and the all-to-all that gives the rank.
		{2, fmt.Sprint(xla.Report{{Kind: xla.AllReduce, Count: 1, Bytes: 4 * width * 2 * 2 * wide},
			{Kind: xla.AllToAll, Count: 1, Bytes: 4 * n}})},
	} {
		spec := params.New("qkv.w", dtypes.Float32, width, (heads+2*c.keys)*wide)
		cut := must.Value(tensor.Heads(-1, heads, c.keys, wide)(spec, n))
		p := onRanks(t, mesh, 0, 1, func(in []*graph.Node) []*graph.Node {
			x := tensor.Group{Axis: "tensor"}.SumCopies(in[0], -1, cut)
			return graph.Gradient(graph.ReduceAllSum(graph.Square(x)), in[0])
		})
		must.Do(t, p.Prepare(zeros(n, width, cut.Length())))
		if got := fmt.Sprint(must.Value(p.Collectives())); got != c.want {
			t.Errorf("%d key heads: %s, want %s", c.keys, got, c.want)
		}
	}
}

// Losses and gradients are those of the definition in plain Go, also for logits whose exponentials overflow, ranks with
// only padding, large values in the padding, and targets outside the vocabulary.
func TestCrossEntropy(t *testing.T) {
	const n, batch, tokens, vocab = 4, 2, 5, 5 // two columns on each rank: one on the third, none on the fourth
	r := rand.New(rand.NewPCG(2, 3))
	logits := random(r, 3, batch, tokens, vocab)
	for i := range 2 * vocab { // two positions
		logits.values[i] = float64(float32(logits.values[i] * 300))
	}
	targets := []int64{4, 0, -1, 5, 7, 1 << 32, math.MinInt64, 2, 3, 1}

	wantLoss, wantGradient := make([]float64, len(targets)), make([]float64, len(logits.values))
	for i, target := range targets {
		if target < 0 || target >= vocab {
			continue
		}
		row := logits.values[i*vocab : (i+1)*vocab]
		top, sum := math.Inf(-1), 0.0
		for _, l := range row {
			top = max(top, l)
		}
		for _, l := range row {
			sum += math.Exp(l - top)
		}
		wantLoss[i] = top + math.Log(sum) - row[target]
		for j, l := range row {
			wantGradient[i*vocab+j] = math.Exp(l-top) / sum * float64(i+1)
		}
		wantGradient[i*vocab+int(target)] -= float64(i + 1)
	}

	cut := must.Value(params.EvenCut(2, vocab, n, true))
	backend := devicetest.Open(t, n)
	for _, group := range []tensor.Group{{Axis: "tensor"}, {}} {
		ranks := n
		if group.Alone() {
			ranks = 1
		}
		p := onRanks(t, must.Value(backend.Mesh(xla.Axis("tensor", ranks))), 1, 2, func(in []*graph.Node) []*graph.Node {
			loss := group.CrossEntropy(in[0], in[1], vocab)
			weights := graph.AddScalar(graph.IotaFull(in[0].Graph(), loss.Shape()), 1) // (B,T)
			return append(graph.Gradient(graph.ReduceAllSum(graph.Mul(loss, weights)), in[0]), loss)
		})
		of := cut
		if ranks == 1 {
			of = nil
		}
		stacked := logits.stacked(of, ranks)
		if ranks > 1 {
			tensors.MustMutableFlatData(stacked, func(flat []float32) { // values in the padding must not count
				for rank := range ranks {
					for i := range len(flat) / ranks {
						if of.Index[rank][i%len(of.Index[rank])] < 0 {
							flat[rank*len(flat)/ranks+i] = 1000
						}
					}
				}
			})
		}
		got := call(t, p, stacked, tensors.FromFlatDataAndDimensions(targets, batch, tokens))
		for rank := range ranks {
			shard := func(values []float32) []float32 {
				return values[rank*len(values)/ranks : (rank+1)*len(values)/ranks]
			}
			want := array{logits.dims, wantGradient}.part(of, rank)
			if d := distance(t, "gradients", shard(got[0]), want.values, 10); !(d <= 0x1p-18) {
				t.Errorf("gradients on rank %d of %d: %v, want %v", rank, ranks, shard(got[0]), want.values)
			}
			if d := distance(t, "losses", shard(got[1]), wantLoss, largest(wantLoss)); !(d <= 0x1p-20) {
				t.Errorf("losses on rank %d of %d: %v, want %v", rank, ranks, shard(got[1]), wantLoss)
			}
		}
	}
}

// Embeddings of a sharded table are exactly those of the full one, in any type; tokens outside the table give zeros.
func TestEmbed(t *testing.T) {
	const n, vocab, width = 3, 7, 2
	table := random(rand.New(rand.NewPCG(5, 6)), 1, vocab, width)
	tokens := []uint8{0, 6, 3, 2, 5, 1, 4, 6, 3, 0, 200, 9}
	cut := must.Value(params.EvenCut(0, vocab, n, true))
	group := tensor.Group{Axis: "tensor"}
	p := onRanks(t, must.Value(devicetest.Open(t, n).Mesh(xla.Axis("tensor", n))), 1, 2,
		func(in []*graph.Node) []*graph.Node {
			half := group.Embed(graph.ConvertDType(in[0], dtypes.BFloat16), in[1])
			if half.DType() != dtypes.BFloat16 {
				t.Errorf("a table of bfloat16 gives %v", half.DType())
			}
			return []*graph.Node{group.Embed(in[0], in[1]), half}
		})
	got := call(t, p, table.stacked(cut, n), tensors.FromFlatDataAndDimensions(tokens, 2, 6))
	for rank := range n {
		for i, token := range tokens {
			for j := range width {
				want := float32(0)
				if token < vocab {
					want = float32(table.values[int(token)*width+j])
				}
				at := (rank*len(tokens)+i)*width + j
				if got[0][at] != want {
					t.Errorf("rank %d, token %d: %v, want %v", rank, token, got[0][at], want)
				}
				if half := float64(got[1][at]); math.Abs(half-float64(want)) > 0x1p-8*math.Abs(float64(want)) {
					t.Errorf("rank %d, token %d: %v in bfloat16, want %v", rank, token, half, want)
				}
			}
		}
	}
}

func zeros(dims ...int) *tensors.Tensor {
	return tensors.FromShape(shapes.Make(dtypes.Float32, dims...))
}

// The collectives of a pair of layers, with several matrices in the first, as XLA compiled it: in each pass one
// all-reduce of B·T·C elements; with Sequence one all-gather and one reduce-scatter in each pass and one more
// all-gather in the backward pass; with Overlap n−1 permutes of 1/n of that for each of them, without the third
// all-gather, and the n numbers of collective.Rank.
func TestTraffic(t *testing.T) {
	const n, batch, tokens, width, hidden = 4, 2, 8, 4, 12
	const full = batch * tokens * width * 4 // bytes
	mesh := must.Value(devicetest.Open(t, n).Mesh(xla.Axis("tensor", n)))
	for _, w := range variants {
		for passes := 1; passes <= 2; passes++ {
			length := tokens
			operation := func(kind xla.CollectiveKind, count, each int) xla.Traffic {
				return xla.Traffic{Kind: kind, Count: passes * count, Bytes: int64(passes * count * each)}
			}
			var want []xla.Traffic
			switch w.name {
			case "tensor":
				want = []xla.Traffic{operation(xla.AllReduce, 1, full)}
			case "sequence":
				gathers := 2*passes - 1
				want = []xla.Traffic{{Kind: xla.AllGather, Count: gathers, Bytes: int64(gathers * full)},
					operation(xla.ReduceScatter, 1, full)}
				length = tokens / n
			case "overlap":
				want, length = []xla.Traffic{{Kind: xla.AllToAll, Count: 1, Bytes: 4 * n},
					operation(xla.Permute, 2*(n-1), full/n)}, tokens/n
			}
			p := onRanks(t, mesh, 0, 3, func(in []*graph.Node) []*graph.Node {
				z := pair(w.group, in[0], in[1], in[2])
				if passes == 1 {
					return []*graph.Node{z}
				}
				// The gradient of the square depends on z, so that XLA cannot remove the forward pass.
				return graph.Gradient(graph.ReduceAllSum(graph.Square(z)), in...)
			})
			must.Do(t, p.Prepare(zeros(n, batch, length, width), zeros(n, width, hidden/n), zeros(n, hidden/n, width)))
			got := must.Value(p.Collectives())
			slices.SortFunc(got, func(a, b xla.Traffic) int { return int(a.Kind) - int(b.Kind) })
			if !slices.Equal(got, want) {
				t.Errorf("%s, %d passes: %v, want %v", w.name, passes, got, xla.Report(want))
			}
		}
	}
}

// pair is (tanh(x·a)∘(x·sin a))·b: two matrices for Columns, which share the communication, and one for Rows.
func pair(t tensor.Group, x, a, b *graph.Node) *graph.Node {
	y := t.Columns(x, []*graph.Node{a, graph.Sin(a)}, dot)
	return t.Rows(graph.Mul(graph.Tanh(y[0]), y[1]), b, dot)
}

// The loss and its gradients need less memory than all logits in float32. They communicate three numbers for each
// position, and the gradient of x.
func TestNoDeviceHasAllLogits(t *testing.T) {
	const n, batch, tokens, width, vocab = 8, 2, 32, 4, 4093
	mesh := must.Value(devicetest.Open(t, n).Mesh(xla.Axis("tensor", n)))
	group := tensor.Group{Axis: "tensor"}
	p := onRanks(t, mesh, 1, 3, func(in []*graph.Node) []*graph.Node {
		logits := group.Columns(in[0], []*graph.Node{in[1]}, dot)[0]
		loss := graph.ReduceAllMean(group.CrossEntropy(logits, in[2], vocab))
		return append(graph.Gradient(loss, in[0], in[1]), loss)
	})
	must.Do(t, p.Prepare(zeros(n, batch, tokens, width), zeros(n, width, (vocab+n-1)/n),
		tensors.FromShape(shapes.Make(dtypes.Int32, batch, tokens))))
	memory := must.Value(p.Memory())
	if all := int64(4 * batch * tokens * vocab); memory.Temporary >= all/2 {
		t.Errorf("%d bytes of temporary memory; all logits have %d", memory.Temporary, all)
	}
	t.Logf("%d bytes of temporary memory; all logits have %d", memory.Temporary, 4*batch*tokens*vocab)
	want := xla.Report{{Kind: xla.AllReduce, Count: 3, Bytes: 4 * batch * tokens * (3 + width)},
		{Kind: xla.AllToAll, Count: 1, Bytes: 4 * n}}
	if got := fmt.Sprint(must.Value(p.Collectives())); got != fmt.Sprint(want) {
		t.Errorf("%s, want %v", got, want)
	}
}
