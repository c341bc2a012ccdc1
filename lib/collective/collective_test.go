package collective_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/xla"
)

type fn = func(x *graph.Node) *graph.Node

// call runs a graph function on a mesh, with x and the result sharded along axis 0 over all devices.
func call(t *testing.T, mesh *xla.Mesh, f fn, x any) (*dtensor.Tensor, xla.Report) {
	t.Helper()
	all := xla.Shard(0, mesh.AxesNames()...)
	p := must.Get(xla.Compile(mesh, f, xla.In(all).Gives(all)))(t)
	defer p.Close()
	out := must.Get(p.Call(x))(t)
	report := must.Get(p.Collectives())(t)
	return out[0], report
}

func mesh(t *testing.T, axes ...xla.MeshAxis) *xla.Mesh {
	t.Helper()
	n := 1
	for _, axis := range axes {
		n *= axis.Size
	}
	m := must.Get(devicetest.Open(t, n).Mesh(axes...))(t)
	return m
}

// flat is the devices' values, one after another.
func flat(t *testing.T, placed *dtensor.Tensor) []float32 {
	t.Helper()
	joined := must.Get(placed.Merge())(t)
	return tensors.MustCopyFlatData[float32](joined)
}

// gives checks what a program returns.
func gives(t *testing.T, p *xla.Program, want []*tensors.Tensor, delta float64, inputs ...any) {
	t.Helper()
	got := must.Get(p.Call(inputs...))(t)
	for i := range want {
		joined := must.Get(got[i].Merge())(t)
		if !joined.InDelta(want[i], delta) {
			t.Errorf("result %d: %v, want %v", i, joined, want[i])
		}
	}
}

// Under Checkpoint the backward pass recomputes a block with its collectives. The gradients are the same, and XLA does
// not remove the recomputed collectives.
func TestCheckpoint(t *testing.T) {
	m := mesh(t, xla.Axis("data", 4))
	x := make([]float32, 4*8*columns)
	for i := range x {
		x[i] = float32(math.Sin(float64(i)))
	}
	for _, o := range append(operations(4), operation{name: "f and g", on: func(x *graph.Node, _ ...string) *graph.Node {
		return collective.G(graph.Tanh(collective.F(x, "data")), "data")
	}}) {
		if o.name == "part" {
			continue // it does not communicate
		}
		op := func(x *graph.Node) *graph.Node { return graph.Reshape(o.on(graph.Reshape(x, 8, columns)), -1) }
		name := o.name
		gradient := func(checkpoint bool) ([]float32, xla.Report) {
			out, report := call(t, m, func(x *graph.Node) *graph.Node {
				h := graph.Sin(x)
				if checkpoint {
					h = h.Checkpoint()
				}
				h = graph.Square(op(graph.Tanh(h))) // its gradient needs the result of op
				if checkpoint {
					h = h.StopCheckpoint()
				}
				return graph.Gradient(graph.ReduceAllSum(graph.Square(h)), x)[0]
			}, x)
			return flat(t, out), report
		}
		want, once := gradient(false)
		got, recomputed := gradient(true)
		for i := range want {
			if math.Abs(float64(got[i]-want[i])) > 1e-5*math.Max(1, math.Abs(float64(want[i]))) {
				t.Errorf("%s: gradient %d under Checkpoint is %g, want %g", name, i, got[i], want[i])
				break
			}
		}
		if count(recomputed) <= count(once) {
			t.Errorf("%s: under Checkpoint the program has %v, without it %v: want more", name, recomputed, once)
		}
	}
}

func count(r xla.Report) int {
	n := 0
	for _, t := range r {
		n += t.Count
	}
	return n
}

// An MLP with weights sharded as in Megatron gives the loss and the gradients of the unsharded one, with one all-reduce
// in each pass.
func TestMegatronMLP(t *testing.T) {
	const width, hidden, ranks = 8, 16, 4
	loss := func(x, w1, w2 *graph.Node, f, g func(*graph.Node) *graph.Node) []*graph.Node {
		h := graph.Tanh(graph.Dot(f(x), w1).Product())
		l := graph.ReduceAllSum(graph.Square(g(graph.Dot(h, w2).Product())))
		return append(graph.Gradient(l, x, w1, w2), l)
	}
	matrix := func(rows, columns int) *tensors.Tensor {
		values := make([]float32, rows*columns)
		for i := range values {
			values[i] = float32(math.Sin(float64(i+rows))) / 2
		}
		return tensors.FromFlatDataAndDimensions(values, rows, columns)
	}
	x, w1, w2 := matrix(3, width), matrix(width, hidden), matrix(hidden, width)
	same := func(x *graph.Node) *graph.Node { return x }
	want := must.Get(devicetest.Call(func(in []*graph.Node) []*graph.Node {
		return loss(in[0], in[1], in[2], same, same)
	},
		x, w1, w2))(t)
	m := mesh(t, xla.Axis("tensor", ranks))
	rows, columns := xla.Shard(0, "tensor"), xla.Shard(1, "tensor")
	p := must.Get(xla.Compile(m, func(in []*graph.Node) []*graph.Node {
		return loss(in[0], in[1], in[2], func(x *graph.Node) *graph.Node { return collective.F(x, "tensor") },
			func(x *graph.Node) *graph.Node { return collective.G(x, "tensor") })
	}, xla.In(xla.Replicated(), columns, rows).Gives(xla.Replicated(), columns, rows, xla.Replicated())))(t)
	defer p.Close()
	gives(t, p, want, 1e-5, x, w1, w2)
	report := must.Get(p.Collectives())(t)
	if want := (xla.Traffic{Kind: xla.AllReduce, Count: 2, Bytes: 2 * 3 * width * 4}); len(report) != 1 ||
		report[0] != want {
		t.Errorf("the program has %v, want %+v", report, want)
	}
}

// Second gradients through F and G, of a penalty on the gradient, are those of one device.
func TestSecondGradients(t *testing.T) {
	penalty := func(x, w *graph.Node, f, g func(*graph.Node) *graph.Node) []*graph.Node {
		y := g(graph.Mul(graph.Square(f(x)), w)) // Σ w·x²
		dx := graph.Gradient(graph.ReduceAllSum(graph.Square(y)), x)[0]
		return graph.Gradient(graph.ReduceAllSum(graph.Square(dx)), x, w)
	}
	x, w := []float32{2, 3}, [][]float32{{1, 2}, {3, 4}, {5, 6}}
	want := must.Get(devicetest.Call(func(in []*graph.Node) []*graph.Node {
		return penalty(in[0], in[1], func(x *graph.Node) *graph.Node {
			return graph.BroadcastToDims(graph.ExpandAxes(x, 0), 3, 2)
		}, func(y *graph.Node) *graph.Node { return graph.ReduceSum(y, 0) })
	}, tensors.FromValue(x), tensors.FromValue(w)))(t)
	rows := xla.Shard(0, "a")
	p := must.Get(xla.Compile(mesh(t, xla.Axis("a", 3)), func(in []*graph.Node) []*graph.Node {
		w := graph.Reshape(in[1], 2)
		of := penalty(in[0], w, func(x *graph.Node) *graph.Node { return collective.F(x) },
			func(y *graph.Node) *graph.Node { return collective.G(y) })
		of[1] = graph.ExpandAxes(of[1], 0)
		return of
	}, xla.In(xla.Replicated(), rows).Gives(xla.Replicated(), rows)))(t)
	defer p.Close()
	gives(t, p, want, 1e-2, x, w) // numbers in the thousands
}

// Programs do not change if a caller changes the slices that it passed.
func TestArgumentsAreCopied(t *testing.T) {
	m := mesh(t, xla.Axis("a", 2), xla.Axis("b", 1))
	to, axes := []int{1, 0}, []string{"a"}
	swap := func(x *graph.Node) *graph.Node {
		y := collective.Permute(x, to, axes...)
		to[0], to[1], axes[0] = 0, 1, "b"
		return graph.Gradient(graph.ReduceAllSum(graph.Mul(y, graph.StopGradient(x))), x)[0]
	}
	for range 2 {
		out, _ := call(t, m, swap, []float32{1, 2})
		if got := flat(t, out); got[0] != 2 || got[1] != 1 {
			t.Errorf("gradients %v, want [2 1]", got)
		}
		to[0], to[1], axes[0] = 1, 0, "a"
	}
}

// A barrier changes no bits, waits for all ranks, and accepts values from outside a loop.
func TestBarrier(t *testing.T) {
	inf, negativeZero := float32(math.Inf(1)), float32(math.Copysign(0, -1))
	out, report := call(t, mesh(t, xla.Axis("a", 2)), func(x *graph.Node) *graph.Node {
		return collective.Barrier(x)
	}, []float32{inf, 1, negativeZero, -inf, 2, 3})
	for i, want := range []float32{inf, 1, negativeZero, -inf, 2, 3} {
		if got := flat(t, out)[i]; math.Float32bits(got) != math.Float32bits(want) {
			t.Errorf("element %d is %g, want %g", i, got, want)
		}
	}
	if n := report.Of(xla.AllReduce).Count; n != 1 {
		t.Errorf("the program has %v, want an all-reduce", report)
	}
	out, _ = call(t, mesh(t, xla.Axis("a", 2)), func(x *graph.Node) *graph.Node {
		zero := graph.Const(x.Graph(), int32(0))
		return xla.While([]*graph.Node{zero, x}, func(s []*graph.Node) *graph.Node {
			return graph.LessThan(s[0], graph.Const(x.Graph(), int32(2)))
		}, func(s []*graph.Node) []*graph.Node {
			positive := collective.Barrier(graph.GreaterThan(x, graph.ZerosLike(x)))
			return []*graph.Node{graph.AddScalar(s[0], 1),
				graph.Add(s[1], graph.Where(positive, collective.Barrier(x), s[1]))}
		})[1]
	}, []float32{1, 2})
	if got := flat(t, out); got[0] != 3 || got[1] != 6 {
		t.Errorf("in a loop: %v, want [3 6]", got)
	}
}

// If several ranks have the largest value, each gets an equal part of its gradient.
func TestTies(t *testing.T) {
	out, _ := call(t, mesh(t, xla.Axis("a", 4)), func(x *graph.Node) *graph.Node {
		return graph.Gradient(graph.ReduceAllSum(collective.AllReduce(x, collective.Max)), x)[0]
	}, []float32{2, 5, 5, 1})
	if got := flat(t, out); got[0] != 0 || got[1] != 2 || got[2] != 2 || got[3] != 0 {
		t.Errorf("gradients of the sum of 4 equal results are %v, want [0 2 2 0]", got)
	}
}

// Broadcast and Scatter preserve what a sum would change, in every type: the sign of zero, subnormal numbers,
// infinities and the bits of NaN.
func TestExactBits(t *testing.T) {
	m := mesh(t, xla.Axis("a", 2))
	bits := []uint32{0x80000000, 1, 0x7fc00001, 0xff800000, 0x7f800000, 0x80000001, 0xffc12345, 0x3f800000}
	x := make([]float32, 16) // of two devices; the second is the root
	for i, b := range bits {
		x[8+i] = math.Float32frombits(b)
		x[i] = float32(math.NaN())
	}
	for _, dtype := range []dtypes.DType{dtypes.Float32, dtypes.BFloat16, dtypes.Float16, dtypes.Float64, dtypes.Int32,
		dtypes.Uint8, dtypes.Bool} {
		as := func(x *graph.Node) *graph.Node {
			if dtype.IsFloat() && dtype.Size() == 2 {
				return graph.Bitcast(graph.Slice(graph.Bitcast(x, dtypes.Uint16), graph.AxisRange(), graph.AxisElem(1)),
					dtype)
			}
			return graph.ConvertDType(x, dtype)
		}
		integer := map[int]dtypes.DType{1: dtypes.Uint8, 2: dtypes.Uint16, 4: dtypes.Uint32,
			8: dtypes.Uint64}[dtype.Size()]
		same, _ := call(t, m, func(x *graph.Node) *graph.Node {
			mine := as(x) // on the root: the expected values
			sent := as(collective.RingShift(x, 1))
			equal := func(a, b *graph.Node) *graph.Node {
				if dtype == dtypes.Bool {
					a, b = graph.ConvertDType(a, integer), graph.ConvertDType(b, integer)
				}
				same := graph.Equal(graph.Bitcast(a, integer), graph.Bitcast(b, integer))
				return graph.Reshape(graph.ConvertDType(same, dtypes.Float32), -1)
			}
			return graph.Concatenate([]*graph.Node{
				equal(collective.Broadcast(mine, 1), sent),
				equal(collective.Scatter(mine, 0, 1), collective.Part(sent, 0)),
				equal(collective.Scatter(mine, 0, 1), collective.Part(mine, 0)),
			}, 0)
		}, x)
		got := flat(t, same)
		for i := range 8 {
			if got[i] != 1 {
				t.Errorf("broadcast of %v: element %d (bits %#x) has changed", dtype, i, bits[i])
			}
		}
		for i := range 4 {
			if got[8+i] != 1 || got[16+12+i] != 1 { // on device 0, and on the root
				t.Errorf("scatter of %v: element %d of a part has changed", dtype, i)
			}
		}
	}
}

// AllReduceEach reduces tensors of several types, each in its own type.
func TestAllReduceOfSeveralTypes(t *testing.T) {
	out, report := call(t, mesh(t, xla.Axis("a", 2)), func(x *graph.Node) *graph.Node {
		types := []dtypes.DType{dtypes.Int32, dtypes.Float32, dtypes.Int32, dtypes.Float64, dtypes.Float32}
		var xs []*graph.Node
		for i, dtype := range types {
			xs = append(xs, graph.MulScalar(graph.ConvertDType(x, dtype), i+1))
		}
		for i, y := range collective.AllReduceEach(xs, collective.Sum) {
			if y.DType() != types[i] {
				t.Errorf("result %d is %v, want %v", i, y.DType(), types[i])
			}
			xs[i] = graph.ConvertDType(y, dtypes.Float32)
		}
		return graph.Concatenate(xs, 0)
	}, []float32{1, 10})
	for i, v := range flat(t, out) {
		if want := float32(11 * (i%5 + 1)); v != want {
			t.Errorf("element %d is %g, want %g", i, v, want)
		}
	}
	if got := report.Of(xla.AllReduce); got.Bytes != 4+4+4+8+4 {
		t.Errorf("reduced %v, want 24 bytes", report)
	}
}

// Ranks count along the given axes; the first is the major one.
func TestRank(t *testing.T) {
	m := mesh(t, xla.Axis("a", 2), xla.Axis("b", 3))
	for _, c := range []struct {
		axes []string
		size int
		want string // of devices 0 to 5
	}{
		{nil, 6, "0 1 2 3 4 5"},
		{[]string{"a"}, 2, "0 0 0 1 1 1"},
		{[]string{"b"}, 3, "0 1 2 0 1 2"},
		{[]string{"b", "a"}, 6, "0 2 4 1 3 5"},
	} {
		var size int
		out, report := call(t, m, func(x *graph.Node) *graph.Node {
			g := x.Graph()
			size = collective.AxisSize(g, c.axes...)
			first, second := collective.Rank(g, c.axes...), collective.Rank(g, c.axes...)
			looped := xla.While([]*graph.Node{graph.Const(g, int32(0))}, func(s []*graph.Node) *graph.Node {
				return graph.LessThan(s[0], first)
			}, func(s []*graph.Node) []*graph.Node { return []*graph.Node{graph.AddScalar(s[0], 1)} })[0]
			return graph.Add(graph.ConvertDType(graph.Add(looped, graph.Sub(second, first)), x.DType()), x)
		}, make([]float32, 6))
		var got []string
		for _, v := range flat(t, out) {
			got = append(got, string(rune('0'+int(v))))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("ranks along %v are %v, want %s", c.axes, got, c.want)
		}
		if size != c.size {
			t.Errorf("%d ranks along %v, want %d", size, c.axes, c.size)
		}
		if n := report.Of(xla.AllToAll).Count; n != 1 {
			t.Errorf("two calls of Rank made %d all-to-alls, want 1", n)
		}
	}
}

// In a loop an operation runs in every iteration.
func TestInsideWhile(t *testing.T) {
	out, _ := call(t, mesh(t, xla.Axis("a", 3)), func(x *graph.Node) *graph.Node {
		zero := graph.Const(x.Graph(), int32(0))
		return xla.While([]*graph.Node{zero, x}, func(s []*graph.Node) *graph.Node {
			return graph.LessThan(s[0], graph.Const(x.Graph(), int32(3)))
		}, func(s []*graph.Node) []*graph.Node {
			y := collective.RingShift(s[1], 1)
			y = collective.Part(collective.AllGather(y, 0), 0)
			y = graph.Add(y, collective.Scatter(collective.AllGather(x, 0), 0, 2))
			return []*graph.Node{graph.AddScalar(s[0], 1), y}
		})[1]
	}, []float32{1, 10, 100})
	// Three shifts return to the start; each iteration adds a part.
	if got := flat(t, out); got[0] != 1+1+10+100 || got[1] != 10+111 || got[2] != 100+111 {
		t.Errorf("%v, want [112 121 211]", got)
	}
}

func TestErrors(t *testing.T) {
	m := mesh(t, xla.Axis("data", 2), xla.Axis("tensor", 2))
	for _, c := range []struct {
		name string
		f    fn
		want []string
	}{
		{"uneven reduce-scatter", func(x *graph.Node) *graph.Node {
			return collective.ReduceScatter(x, collective.Sum, -1, "data")
		}, []string{"ReduceScatter", "axis 1", "3 elements", "2 ranks", "mesh axis data"}},
		{"uneven all-to-all", func(x *graph.Node) *graph.Node { return collective.AllToAll(x, 1, 0, "data", "tensor") },
			[]string{"AllToAll", "axis 1", "3 elements", "4 ranks", "data, tensor"}},
		{"uneven scatter", func(x *graph.Node) *graph.Node { return collective.Scatter(x, 1, 0, "tensor") },
			[]string{"axis 1", "3 elements", "2 ranks"}},
		{"no such mesh axis", func(x *graph.Node) *graph.Node { return collective.AllGather(x, 0, "model") },
			[]string{"AllGather", `no axis "model"`, `"data" "tensor"`}},
		{"mesh axis twice", func(x *graph.Node) *graph.Node { return collective.AllGather(x, 0, "data", "data") },
			[]string{`"data" is named twice`}},
		{"no such tensor axis", func(x *graph.Node) *graph.Node { return collective.AllGather(x, 2, "data") },
			[]string{"no axis 2"}},
		{"no such root", func(x *graph.Node) *graph.Node { return collective.Broadcast(x, 2, "data") },
			[]string{"root 2", "2 ranks"}},
		{"mean of integers", func(x *graph.Node) *graph.Node {
			return collective.AllReduce(graph.ConvertDType(x, 4), collective.Mean)
		}, []string{"mean of Int32"}},
		{"unknown reduction", func(x *graph.Node) *graph.Node { return collective.AllReduce(x, 9) }, []string{"Op(9)"}},
		{"too few targets", func(x *graph.Node) *graph.Node { return collective.Permute(x, []int{0}, "data") },
			[]string{"1 targets for 2 ranks"}},
		{"target twice", func(x *graph.Node) *graph.Node { return collective.Permute(x, []int{1, 1}, "data") },
			[]string{"ranks 0 and 1 both send to rank 1"}},
		{"target that is no rank", func(x *graph.Node) *graph.Node {
			return collective.Permute(x, []int{1, 2}, "data")
		}, []string{"rank 1 sends to rank 2"}},
	} {
		p, err := xla.Compile(m, c.f, xla.In(xla.Replicated()).Gives(xla.Replicated()))
		must.Do(t, err)
		_, err = p.Call([][]float32{{1, 2, 3}, {4, 5, 6}, {7, 8, 9}, {10, 11, 12}})
		for _, want := range c.want {
			must.Refuse(t, c.name, err, want)
		}
		p.Close()
	}
	_, err := devicetest.Call(func(in []*graph.Node) []*graph.Node {
		return []*graph.Node{collective.AllReduce(in[0], collective.Sum)}
	}, tensors.FromValue([]float32{1}))
	must.Refuse(t, "without a mesh", err, "xla.Compile")
	auto := must.Get(xla.CompileAuto(m, func(x *graph.Node) *graph.Node {
		return collective.AllReduce(x, collective.Sum)
	},
		xla.In(xla.Replicated()).Gives(xla.Replicated())))(t)
	defer auto.Close()
	if _, err := auto.Call(float32(1)); err == nil || !strings.Contains(err.Error(), "xla.Compile") {
		t.Errorf("with AutoSharding: %v", err)
	}
}

// Half types travel as what they are, in two bytes a number, also where XLA would compute with them in float32.
func TestHalfTypesMoveInHalf(t *testing.T) {
	m := mesh(t, xla.Axis("a", 2))
	for _, dtype := range []dtypes.DType{dtypes.BFloat16, dtypes.Float16} {
		out, report := call(t, m, func(x *graph.Node) *graph.Node {
			half := graph.ConvertDType(x, dtype)
			half = collective.RingShift(collective.AllToAll(half, 0, 0), 1)
			all := collective.AllGather(half, 0)
			return collective.Part(graph.ConvertDType(all, dtypes.Float32), 0)
		}, []float32{1, 2, 3, 4, 5, 6, 7, 8})
		want := xla.Report{{Kind: xla.AllGather, Count: 1, Bytes: 16}, {Kind: xla.AllToAll, Count: 2, Bytes: 8 + 8},
			{Kind: xla.Permute, Count: 1, Bytes: 8}}
		if len(report) != len(want) || report[0] != want[0] || report[1] != want[1] || report[2] != want[2] {
			t.Errorf("%v: the program has %v, want %v, of which one all-to-all is that of Part's rank", dtype, report,
				want)
		}
		if got := flat(t, out); !slices.Equal(got, []float32{3, 4, 7, 8, 1, 2, 5, 6}) {
			t.Errorf("%v: arrived as %v", dtype, got)
		}
	}
}
