package xla

import (
	"fmt"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
)

// Canary is one small computation that was run on the devices and compared with
// plain Go when the backend was opened. Its numbers are small integers and
// halves, exact in every type and in every order of summation, so the devices
// must give the very same ones.
type Canary struct {
	Name  string // what was computed
	Wrong int    // how many of its values differ from plain Go
	Of    int    // how many values it has
}

// OK reports whether every value was right.
func (c Canary) OK() bool { return c.Wrong == 0 }

// String says what was computed and whether it was right.
func (c Canary) String() string {
	if c.OK() {
		return c.Name + ": right"
	}
	return fmt.Sprintf("%s: %d of %d values wrong", c.Name, c.Wrong, c.Of)
}

// canarySide is the side of the canaries' matrices. XLA hands products of this
// size and larger to the libraries whose fusions have been wrong.
const canarySide = 64

// canaryTypes are the types that products are checked in. The first is checked
// every time, the others once for a plugin on a machine: each costs a compilation.
var canaryTypes = []dtypes.DType{dtypes.Float32, dtypes.Float64, dtypes.BFloat16, dtypes.Float16}

// runCanaries checks products in the types, and operations between all devices: of
// those only the all-reduce with a single type. It returns every result, and an error that names the first that was
// wrong. A plugin is not trusted because it loads: XLA:CPU has returned garbage, without a word, for a product with a
// constant that is then summed. A test may spoil what the device gave.
func runCanaries(b *Backend, types []dtypes.DType, spoil func(name string, got []float64)) ([]Canary, error) {
	products, err := productCanaries(b, types)
	if err != nil {
		return nil, fmt.Errorf("its products cannot be checked: %w", err)
	}
	kinds := []CollectiveKind{AllReduce, AllGather, ReduceScatter, AllToAll, Permute}
	if len(types) == 1 {
		kinds = kinds[:1]
	}
	between, err := collectiveCanaries(b, kinds)
	if err != nil {
		return nil, fmt.Errorf("its collectives cannot be checked: %w", err)
	}
	var results []Canary
	var wrong error
	for _, g := range append(products, between...) {
		c := g.compare(spoil)
		results = append(results, c)
		if !c.OK() && wrong == nil {
			wrong = fmt.Errorf("it computes wrongly: %v", c)
		}
	}
	return results, wrong
}

// given is what a device computed, of type Float64, and what is right.
type given struct {
	name string
	got  *tensors.Tensor
	want []float64
}

func (g given) compare(spoil func(name string, got []float64)) Canary {
	got, err := tensors.CopyFlatData[float64](g.got)
	if err != nil {
		got = nil // every value is wrong
	}
	if spoil != nil {
		spoil(g.name, got)
	}
	return compareValues(g.name, got, g.want)
}

// productCanaries checks in each type a product of two inputs and a product with
// a broadcast constant, each summed over its rows.
func productCanaries(b *Backend, types []dtypes.DType) ([]given, error) {
	const n, half = canarySide, 0.5
	x, w := canaryMatrix(7), canaryMatrix(5)
	program, err := graph.NewExec(b, func(x, w *graph.Node) []*graph.Node {
		var sums []*graph.Node
		for _, t := range types {
			xt, wt := graph.ConvertDType(x, t), graph.ConvertDType(w, t)
			constant := graph.BroadcastToDims(graph.Scalar(x.Graph(), t, half), n, n)
			for _, product := range []*graph.Node{graph.Dot(xt, wt).Product(), graph.Dot(xt, constant).Product()} {
				sums = append(sums, graph.ConvertDType(graph.ReduceSum(product, 0), dtypes.Float64))
			}
		}
		return sums
	})
	if err != nil {
		return nil, err
	}
	defer program.Finalize()
	got, err := program.Call(tensors.FromFlatDataAndDimensions(x, n, n), tensors.FromFlatDataAndDimensions(w, n, n))
	if err != nil {
		return nil, err
	}
	halves := make([]float32, n*n)
	for i := range halves {
		halves[i] = half
	}
	var all []given
	for i, t := range types {
		all = append(all,
			given{fmt.Sprintf("%v product of two inputs, summed", t), got[2*i], columnSums(x, w)},
			given{fmt.Sprintf("%v product with a constant, summed", t), got[2*i+1], columnSums(x, halves)})
	}
	return all, nil
}

// canaryMatrix returns a square matrix of a few 1 and -1 among zeros, so that sums
// stay small.
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

// columnSums returns the sums over the rows of the product of two square matrices.
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

// collectiveCanaries checks operations between all N devices, in which device d gives
// the N numbers d·N to d·N+N-1.
func collectiveCanaries(b *Backend, kinds []CollectiveKind) ([]given, error) {
	n := b.info.Devices
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
			c := Collective{Kind: kind, Reduce: compute.ReduceOpSum, To: ring, Along: []string{"all"}}
			result := c.Apply(x)[0]
			if known, ok := CollectiveOf(result.Inputs()[0]); !ok || known.Kind != kind { // gradients need it
				panic(fmt.Errorf("the graph's node for %v does not say what it is", kind))
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

// afterCollective is what the devices hold then, one after another.
func afterCollective(kind CollectiveKind, n int) []float64 {
	var all []float64
	sum := func(i int) float64 { return float64(n*i + n*n*(n-1)/2) } // Σ d·n + i over d
	for d := range n {
		for i := range n {
			switch kind {
			case AllReduce:
				all = append(all, sum(i))
			case AllToAll:
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

// compareValues counts the values of got that are not those of want.
func compareValues(name string, got, want []float64) Canary {
	c := Canary{Name: name, Of: len(want)}
	for i, v := range want {
		if i >= len(got) || got[i] != v { // true for NaN too
			c.Wrong++
		}
	}
	return c
}
