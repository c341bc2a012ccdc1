//go:build !resident

package xla

import (
	"fmt"
	"slices"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/plugin"
)

// canarySide is the side of the canaries' matrices. XLA passes matmuls of this size and larger to the libraries whose
// fusions have been wrong.
const canarySide = 64

// canaryTypes are the types in which matmuls are checked: the first one every time, the others once for a plugin on a
// machine, since each costs a compilation.
var canaryTypes = []dtypes.DType{dtypes.Float32, dtypes.Float64, dtypes.BFloat16, dtypes.Float16}

// runCanaries checks matmuls in the types, and collectives between all devices; with a single type only the all-reduce,
// unless they are kernels, which cost no compilation.
// It returns all results, and an error that names the first wrong one. Plugins must be checked: XLA:CPU has silently
// returned garbage for a matmul with a constant that is then summed. A test may change the devices' results by spoil.
func runCanaries(b *Backend, types []dtypes.DType, spoil func(name string, got []float64)) ([]Canary, error) {
	questions := []question{matmulCanaries(types)}
	if b.kernels {
		questions = append(questions, kernelCanaries())
	}
	if b.kernels || b.cudaKernels {
		questions = append(questions, checkedCanaries(b.info.Platform)...)
	}
	answers, err := ask(b, questions)
	if err != nil {
		return nil, fmt.Errorf("its matmuls and kernels cannot be checked: %w", err)
	}
	kinds := []CollectiveKind{AllReduce, AllGather, ReduceScatter, AllToAll, Permute}
	if b.kernels {
		kinds = append(kinds, AllToAllV)
	} else if len(types) == 1 {
		kinds = kinds[:1]
	}
	collectives, err := collectiveCanaries(b, kinds)
	if err != nil {
		return nil, fmt.Errorf("its collectives cannot be checked: %w", err)
	}
	var results []Canary
	for _, g := range slices.Concat(answers, collectives) {
		results = append(results, g.compare(spoil))
	}
	if i := slices.IndexFunc(results, func(c Canary) bool { return !c.OK() }); i >= 0 {
		return results, fmt.Errorf("it computes wrongly: %v", results[i])
	}
	return results, nil
}

// given is the result of a device, of type Float64, and the right one.
type given struct {
	name string
	got  *tensors.Tensor
	want []float64
}

// compare counts the wrong values.
func (g given) compare(spoil func(name string, got []float64)) Canary {
	got, err := tensors.CopyFlatData[float64](g.got)
	if err != nil {
		got = nil // every value is wrong
	}
	if spoil != nil {
		spoil(g.name, got)
	}
	c := Canary{Name: g.name, Of: len(g.want)}
	for i, v := range g.want {
		if i >= len(got) || got[i] != v { // true for NaN too
			c.Wrong++
		}
	}
	return c
}

// question is a part of the program of one device's canaries: what it computes, and the right results.
type question struct {
	operands []*tensors.Tensor
	compute  func(operands []*graph.Node) []*graph.Node
	results  []given // ask sets what the device got
}

// add adds a result.
func (q *question) add(name string, want []float64) {
	q.results = append(q.results, given{name: name, want: want})
}

// ask has one program compute all questions: each program costs a compilation.
func ask(b *Backend, questions []question) (all []given, err error) {
	var operands []any
	for _, q := range questions {
		for _, x := range q.operands {
			operands = append(operands, x)
		}
	}
	program, err := graph.NewExec(b, func(in []*graph.Node) (out []*graph.Node) {
		for _, q := range questions {
			for _, result := range q.compute(in[:len(q.operands)]) {
				out = append(out, graph.ConvertDType(result, dtypes.Float64))
			}
			in = in[len(q.operands):]
		}
		return out
	})
	if err != nil {
		return nil, err
	}
	defer program.Finalize()
	got, err := program.Call(operands...)
	if err != nil {
		return nil, err
	}
	for _, q := range questions {
		for i, g := range q.results {
			g.got = got[i]
			all = append(all, g)
		}
		got = got[len(q.results):]
	}
	return all, nil
}

// matmulCanaries checks, in each type, a matmul of two inputs and one with a broadcast constant, each summed over rows.
func matmulCanaries(types []dtypes.DType) question {
	const n, half = canarySide, 0.5
	x, w := canaryMatrix(7), canaryMatrix(5)
	sums, halves := columnSums(x, w), columnSums(x, slices.Repeat([]float32{half}, n*n))
	q := question{operands: square(x, w), compute: func(in []*graph.Node) (out []*graph.Node) {
		for _, t := range types {
			xt, wt := graph.ConvertDType(in[0], t), graph.ConvertDType(in[1], t)
			constant := graph.BroadcastToDims(graph.Scalar(xt.Graph(), t, half), n, n)
			for _, product := range []*graph.Node{graph.Dot(xt, wt).Product(), graph.Dot(xt, constant).Product()} {
				out = append(out, graph.ReduceSum(product, 0))
			}
		}
		return out
	}}
	for _, t := range types {
		q.add(fmt.Sprintf("%v matmul of two inputs, summed", t), sums)
		q.add(fmt.Sprintf("%v matmul with a constant, summed", t), halves)
	}
	return q
}

// kernelCanaries checks each kernel for matmuls and sums.
func kernelCanaries() question {
	const n, copies = canarySide, 8
	x, w := canaryMatrix(7), canaryMatrix(5)
	q := question{operands: square(x, w), compute: func(in []*graph.Node) (out []*graph.Node) {
		for form := range 4 {
			product := graph.DotGeneral(in[0], []int{1 - form&1}, nil, in[1], []int{form >> 1}, nil)
			out = append(out, graph.ReduceSum(product, 0))
		}
		return append(out, graph.ReduceSum(graph.BroadcastToDims(graph.InsertAxes(in[0], 0), copies, n, n), 0, 1))
	}}
	for form := range 4 {
		a, b := x, w
		if form&1 > 0 {
			a = transposed(x)
		}
		if form>>1 > 0 {
			b = transposed(w)
		}
		q.add(fmt.Sprintf("kernel %s, summed", matmuls[form&1][form>>1].name), columnSums(a, b))
	}
	ones := make([]float32, n*n) // whose first row sums the columns of x
	for i := range n {
		ones[i] = copies
	}
	q.add("kernel "+columnSumsKernel.name, columnSums(ones, x))
	return q
}

// checkedCanaries checks a platform's kernels of other packages that have a check ([Kernel.Checked]).
func checkedCanaries(on plugin.Platform) (all []question) {
	checkedKernels.Lock()
	kernels := slices.Clone(checkedKernels.all)
	checkedKernels.Unlock()
	for _, k := range kernels {
		if k.platform != on {
			continue
		}
		operands, results := k.check()
		var like []shapes.Shape
		for _, x := range results {
			like = append(like, x.Shape())
		}
		q := question{operands: operands, compute: func(in []*graph.Node) []*graph.Node {
			return k.Call(in, like, func(in []*graph.Node) []*graph.Node {
				panic(k.registered(in[0].Graph().Backend().(*Backend)))
			})
		}}
		for i, x := range results {
			var want []float64
			for _, v := range tensors.MustCopyFlatData[float32](x) {
				want = append(want, float64(v))
			}
			q.add(fmt.Sprintf("kernel %s, result %d", k.name, i), want)
		}
		all = append(all, q)
	}
	return all
}

// square returns matrices as tensors.
func square(matrices ...[]float32) (all []*tensors.Tensor) {
	for _, m := range matrices {
		all = append(all, tensors.FromFlatDataAndDimensions(m, canarySide, canarySide))
	}
	return all
}

// transposed returns a square matrix's transposition.
func transposed(m []float32) []float32 {
	const n = canarySide
	to := make([]float32, n*n)
	for i := range to {
		to[i] = m[i%n*n+i/n]
	}
	return to
}

// canaryMatrix returns a square matrix with a few 1 and -1 and otherwise zeros, so that sums are small.
func canaryMatrix(stride int) []float32 {
	m := make([]float32, canarySide*canarySide)
	for i := range m {
		switch r := i * stride % 23; {
		case r < 2:
			m[i] = 1
		case r >= 21:
			m[i] = -1
		}
	}
	return m
}

// columnSums returns the sums over the rows of the matmul of two square matrices.
func columnSums(a, b []float32) []float64 {
	const n = canarySide
	sums := make([]float64, n)
	for row := range n {
		for k := range n {
			for col := range n {
				sums[col] += float64(a[row*n+k]) * float64(b[k*n+col])
			}
		}
	}
	return sums
}

// collectiveCanaries checks collectives between all N devices, where the input of device d is d·N to d·N+N-1.
func collectiveCanaries(b *Backend, kinds []CollectiveKind) ([]given, error) {
	n := b.share
	mesh, err := b.Mesh(Axis("all", n))
	if err != nil {
		return nil, err
	}
	ring := make([]int, n)
	for d := range ring {
		ring[d] = (d + 1) % n
	}
	program, err := Compile(mesh, func(x *graph.Node) []*graph.Node {
		var results []*graph.Node
		for _, kind := range kinds {
			c := Collective{Kind: kind, Reduce: compute.ReduceOpSum, To: ring, Rows: n, Along: []string{"all"}}
			operands := []*graph.Node{x}
			if one := graph.Ones(x.Graph(), shapes.Make(dtypes.Int32, n)); kind == AllToAllV {
				operands = append(operands, one, one)
			}
			result := c.Apply(operands...)[0]
			if known, ok := CollectiveOf(result.Inputs()[0]); !ok || known.Kind != kind { // needed for gradients
				panic(fmt.Errorf("the graph's node for %v does not know its kind", kind))
			}
			results = append(results, result)
		}
		return results
	}, In(Shard(0, "all")).Gives(Shard(0, "all")))
	if err != nil {
		return nil, err
	}
	defer program.Close()
	numbers := make([]float64, n*n)
	for i := range numbers {
		numbers[i] = float64(i)
	}
	got, err := program.Call(numbers)
	if err != nil {
		return nil, err
	}
	var all []given
	for i, kind := range kinds {
		merged, err := got[i].Merge()
		if err != nil {
			return nil, err
		}
		all = append(all, given{fmt.Sprintf("%v over %d devices", kind, n), merged, afterCollective(kind, n)})
	}
	return all, nil
}

// afterCollective returns the right results of the devices, one after another.
func afterCollective(kind CollectiveKind, n int) []float64 {
	var all []float64
	sum := func(i int) float64 { return float64(n*i + n*n*(n-1)/2) } // Σ d·n + i over d
	for d := range n {
		for i := range n {
			switch kind {
			case AllReduce:
				all = append(all, sum(i))
			case AllToAll, AllToAllV:
				all = append(all, float64(i*n+d))
			case Permute:
				all = append(all, float64((d+n-1)%n*n+i))
			case AllGather:
				for j := range n {
					all = append(all, float64(i*n+j))
				}
			}
		}
		if kind == ReduceScatter {
			all = append(all, sum(d))
		}
	}
	return all
}
