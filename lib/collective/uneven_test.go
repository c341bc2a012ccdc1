package collective_test

import (
	"fmt"
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
	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/xla"
)

// uneven is an all-to-all-v between the devices of a mesh, in groups.
type uneven struct {
	setting
	m, width, g, rows int
	counts            [][]int32 // by device
	groups            [][]int   // of devices
}

// newUneven has random counts, of which some are 0; the devices of every third group send all to one rank.
func newUneven(random *rand.Rand, s setting, mesh *xla.Mesh, g int) uneven {
	along := s.along
	if along == nil {
		along = mesh.AxesNames()
	}
	u := uneven{setting: s, m: 1 + random.IntN(40), width: 1 + random.IntN(40), g: g, rows: 1,
		counts: make([][]int32, mesh.NumDevices())}
	var err error
	if u.groups, err = mesh.ComputeReplicaGroups(along); err != nil {
		panic(err)
	}
	for i, group := range u.groups {
		n := len(group)
		favourite, most := random.IntN(n*g), make([]int, n)
		for _, device := range group {
			counts := make([]int32, n*g)
			for range random.IntN(u.m + 1) {
				to := random.IntN(n * g)
				if i%3 == 2 {
					to = favourite
				}
				counts[to]++
				most[to/g]++
			}
			u.counts[device] = counts
		}
		u.rows = max(u.rows, slices.Max(most))
	}
	u.rows += random.IntN(5)
	return u
}

// numbers are integers that bfloat16 has too, for all devices.
func (u uneven) numbers(rows int) []float32 {
	all := make([]float32, len(u.counts)*rows*u.width)
	for i := range all {
		all[i] = float32(i*37%509 - 254)
	}
	return all
}

// definition is y and received of all devices, row by row.
func (u uneven) definition(x []float32) (y []float32, received []int32) {
	devices := len(u.counts)
	y, received = make([]float32, devices*u.rows*u.width), make([]int32, 0)
	got := make([][]int32, devices)
	for _, group := range u.groups {
		for d, receiver := range group {
			at := receiver * u.rows * u.width
			for _, sender := range group {
				from := sender * u.m
				for i, count := range u.counts[sender] {
					if i/u.g == d {
						at += copy(y[at:], x[from*u.width:(from+int(count))*u.width])
					}
					from += int(count)
				}
				got[receiver] = append(got[receiver], u.counts[sender][d*u.g:(d+1)*u.g]...)
			}
		}
	}
	for _, of := range got {
		received = append(received, of...)
	}
	return y, received
}

// back is the gradient of x for that of y, row by row: what went to y comes back.
func (u uneven) back(dy []float32) []float32 {
	dx := make([]float32, len(u.counts)*u.m*u.width)
	for _, group := range u.groups {
		at := make([]int, len(group))
		for _, sender := range group {
			from := sender * u.m * u.width
			for i, count := range u.counts[sender] {
				d, n := i/u.g, int(count)*u.width
				begin := group[d]*u.rows*u.width + at[d]
				copy(dx[from:from+n], dy[begin:])
				from, at[d] = from+n, at[d]+n
			}
		}
	}
	return dx
}

func (u uneven) run(t *testing.T, mesh *xla.Mesh, x, dy []float32) (y, dx []float32, received []int32, of xla.Report) {
	t.Helper()
	all := xla.Shard(0, mesh.AxesNames()...)
	p := must.Get(xla.Compile(mesh, func(in []*graph.Node) []*graph.Node {
		x, counts := graph.ConvertDType(in[0], u.dtype), graph.Reshape(in[1], -1)
		y, received := collective.AllToAllV(x, counts, u.rows, u.along...)
		if !u.dtype.IsFloat() {
			return []*graph.Node{graph.ConvertDType(y, dtypes.Float32), in[0], graph.ExpandAxes(received, 0)}
		}
		dx := graph.Gradient(graph.ReduceAllSum(graph.Mul(y, graph.ConvertDType(in[2], u.dtype))), x)[0]
		return []*graph.Node{graph.ConvertDType(y, dtypes.Float32), graph.ConvertDType(dx, dtypes.Float32),
			graph.ExpandAxes(received, 0)}
	}, xla.In(all).Gives(all)))(t)
	defer p.Close()
	var counts []int32
	for _, of := range u.counts {
		counts = append(counts, of...)
	}
	n := len(u.counts)
	out := must.Get(p.Call(tensors.FromFlatDataAndDimensions(x, n*u.m, u.width),
		tensors.FromFlatDataAndDimensions(counts, n, len(counts)/n),
		tensors.FromFlatDataAndDimensions(dy, n*u.rows, u.width)))(t)
	received = tensors.MustCopyFlatData[int32](must.Get(out[2].Merge())(t))
	return flat(t, out[0]), flat(t, out[1]), received, must.Get(p.Collectives())(t)
}

// TestAllToAllV compares kernels, and XLA's operations, with the definition and its gradient, bit for bit.
func TestAllToAllV(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, with := range []bool{true, false} {
		var options []xla.Option
		if !with {
			options = append(options, xla.NoKernels())
		}
		backend := must.Get(xla.Open(append(options, xla.Devices(8), xla.Plugin(devicetest.Plugin()))...))(t)
		defer backend.Close()
		one := func(n int, of dtypes.DType) setting { return setting{[]xla.MeshAxis{xla.Axis("a", n)}, nil, of} }
		two := []xla.MeshAxis{xla.Axis("a", 2), xla.Axis("b", 3)}
		for i, s := range []setting{one(1, dtypes.Float32), one(2, dtypes.Float32), one(3, dtypes.Float32),
			one(4, dtypes.Float32), one(8, dtypes.Float32), one(4, dtypes.BFloat16), one(3, dtypes.Float16),
			one(3, dtypes.Int32), one(2, dtypes.Float64), {two, []string{"a"}, dtypes.Float32},
			{two, []string{"b"}, dtypes.BFloat16}, {two, []string{"b", "a"}, dtypes.Float32}} {
			mesh := must.Get(backend.Mesh(s.mesh...))(t)
			u := newUneven(random, s, mesh, 1+i%3)
			x, dy := u.numbers(u.m), u.numbers(u.rows)
			y, dx, received, report := u.run(t, mesh, x, dy)
			wantY, wantReceived := u.definition(x)
			if !slices.Equal(y, wantY) || !slices.Equal(received, wantReceived) {
				t.Errorf("kernels %v, %v, counts %v: got %v and %v, want %v and %v", with, s, u.counts, y, received,
					wantY, wantReceived)
			}
			if want := u.back(dy); s.dtype.IsFloat() && !slices.Equal(dx, want) {
				t.Errorf("kernels %v, %v, counts %v: gradient %v, want %v", with, s, u.counts, dx, want)
			}
			want := xla.Traffic{Kind: xla.AllToAllV, Count: 2,
				Bytes: 2 * int64(max(u.m, u.rows)*u.width) * int64(s.dtype.Size())}
			if got := report.Of(xla.AllToAllV); with && s.dtype.IsFloat() && got != want {
				t.Errorf("%v: the program has %v, want %v", s, got, want)
			}
		}
	}
}

// TestAllToAllVFails has wrong counts: the error says the numbers, and the next run works.
func TestAllToAllVFails(t *testing.T) {
	p := must.Get(xla.Compile(mesh(t, xla.Axis("a", 2)), func(x, counts *graph.Node) *graph.Node {
		y, _ := collective.AllToAllV(x, counts, 3)
		return y
	}, xla.In(xla.Shard(0, "a")).Gives(xla.Shard(0, "a"))))(t)
	defer p.Close()
	x := []float32{1, 2, 3, 4}
	for _, c := range []struct {
		counts []int32
		want   string
	}{
		{[]int32{2, 0, 2, 0}, "rank 0 is sent 4 rows, and its result has only 3"},
		{[]int32{1, 2, 0, 0}, "the counts of rank 0 are of 3 rows, and it has 2"},
		{[]int32{0, 1, 2, -1}, "rank 1 counts -1 rows for rank 1"},
	} {
		_, err := p.Call(x, c.counts)
		must.Refuse(t, fmt.Sprint(c.counts), err, c.want)
	}
	out := must.Get(p.Call(x, []int32{0, 2, 1, 0}))(t)
	if got := flat(t, out[0]); !slices.Equal(got, []float32{3, 0, 0, 1, 2, 0}) {
		t.Errorf("after errors: %v", got)
	}
	for _, c := range []struct {
		of   func(x *graph.Node) (y, received *graph.Node)
		want string
	}{
		{func(x *graph.Node) (y, received *graph.Node) { return collective.AllToAllV(x, x, 3) }, "give int32 [2·g]"},
		{func(x *graph.Node) (y, received *graph.Node) {
			return collective.AllToAllV(x, graph.Const(x.Graph(), []int32{1, 2, 3}), 3)
		}, "counts are (Int32)[3]"},
		{func(x *graph.Node) (y, received *graph.Node) {
			return collective.AllToAllV(x, graph.Const(x.Graph(), []int32{1, 2}), 0)
		}, "to 0 rows"},
	} {
		p := must.Get(xla.Compile(mesh(t, xla.Axis("a", 2)), func(x *graph.Node) *graph.Node {
			y, _ := c.of(x)
			return y
		}, xla.In(xla.Shard(0, "a")).Gives(xla.Shard(0, "a"))))(t)
		_, err := p.Call(x)
		must.Refuse(t, c.want, err, c.want)
		p.Close()
	}
}

// TestAllToAllVTooShort has too few rows where XLA computes: no error, and numbers that nobody takes for right.
func TestAllToAllVTooShort(t *testing.T) {
	backend := must.Get(xla.Open(xla.Devices(2), xla.Plugin(devicetest.Plugin()), xla.NoKernels()))(t)
	defer backend.Close()
	mesh := must.Get(backend.Mesh(xla.Axis("a", 2)))(t)
	p := must.Get(xla.Compile(mesh, func(x, counts *graph.Node) []*graph.Node {
		y, _ := collective.AllToAllV(x, counts, 1)
		z, _ := collective.AllToAllV(graph.ConvertDType(x, dtypes.Int32), counts, 1)
		return []*graph.Node{y, graph.ConvertDType(z, dtypes.Float32)}
	}, xla.In(xla.Shard(0, "a")).Gives(xla.Shard(0, "a"))))(t)
	defer p.Close()
	out := must.Get(p.Call([]float32{3, 4}, []int32{1, 0, 1, 0}))(t)
	y, z := flat(t, out[0]), flat(t, out[1])
	if y[0] == y[0] || y[1] != 0 || !slices.Equal(z, []float32{-1, 0}) {
		t.Errorf("%v and %v, want [NaN 0] and [-1 0]", y, z)
	}
}

// BenchmarkAllToAll compares all-to-alls between four devices: even, uneven by the kernel and in XLA's operations, of
// as many rows, into results without room to spare and with that for the worst case.
func BenchmarkAllToAll(b *testing.B) {
	const n, m, width = 4, 4096, 512
	for _, c := range []struct {
		name    string
		rows    int // of the result; 0: even
		options []xla.Option
	}{{"even", 0, nil}, {"uneven", m, nil}, {"uneven, worst case", n * m, nil}, {"padded", m, []xla.Option{xla.NoKernels()}}} {
		b.Run(c.name, func(b *testing.B) {
			backend, err := xla.Open(append(c.options, xla.Devices(n), xla.Plugin(devicetest.Plugin()))...)
			must.Do(b, err)
			defer backend.Close()
			mesh, err := backend.Mesh(xla.Axis("a", n))
			must.Do(b, err)
			const times = 8 // so that the rest of a call counts little
			p, err := xla.Compile(mesh, func(x, counts *graph.Node) *graph.Node {
				for range times {
					if c.rows == 0 {
						x = collective.AllToAll(x, 0, 0)
						continue
					}
					y, _ := collective.AllToAllV(x, counts, c.rows)
					x = graph.Slice(y, graph.AxisRange(0, m))
				}
				return x
			}, xla.In(xla.Shard(0, "a")).Gives(xla.Shard(0, "a")))
			must.Do(b, err)
			defer p.Close()
			counts := make([]int32, n*n)
			for i := range counts {
				counts[i] = int32(m/n + []int{3, -3, -3, 3}[(i+i/n)%4]) // sums to m for each sender and receiver
			}
			x, err := mesh.Place(tensors.FromShape(shapes.Make(dtypes.Float32, n*m, width)), xla.Shard(0, "a"))
			must.Do(b, err)
			b.SetBytes(times * n * m * width * 4)
			for b.Loop() {
				out, err := p.Call(x, counts)
				must.Do(b, err)
				must.Do(b, out[0].FinalizeAll())
			}
		})
	}
}

// TestAllToAllVOnGPUs compiles it, and its gradient, for GPUs.
func TestAllToAllVOnGPUs(t *testing.T) {
	mesh := must.Get(devicetest.OpenFor(t, "h100", 4).Mesh(xla.Axis("a", 4)))(t)
	p := must.Get(xla.Compile(mesh, func(x, counts *graph.Node) *graph.Node {
		y, _ := collective.AllToAllV(graph.ConvertDType(x, dtypes.BFloat16), counts, 24)
		return graph.Gradient(graph.ReduceAllSum(graph.Square(y)), x)[0]
	}, xla.In(xla.Shard(0, "a")).Gives(xla.Shard(0, "a"))))(t)
	defer p.Close()
	must.Do(t, p.Prepare(tensors.FromShape(shapes.Make(dtypes.Float32, 4*6, 8)), make([]int32, 4*8)))
	report := must.Get(p.Collectives())(t)
	if got := report.Of(xla.AllToAll); got.Count != 3 || !strings.Contains(report.String(), "all-to-all") {
		t.Errorf("the program has %v", report)
	}
}
