package expert

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/dtypes/bfloat16"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/autodiff"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/recompute"
	"github.com/shardbook/shardbook/lib/xla"
)

func TestMain(m *testing.M) { devicetest.Main(m) }

type nodes = []*graph.Node

// swish is the layer's activation in tests: SiLU, or SwiGLU.
func swish(h []*graph.Node) *graph.Node {
	silu := func(x *graph.Node) *graph.Node { return graph.Mul(x, graph.Sigmoid(x)) }
	if len(h) == 1 {
		return silu(h[0])
	}
	return graph.Mul(h[0], silu(h[1]))
}

// problem is a layer, its parameters and tokens.
type problem struct {
	reference
	p     values
	x     []float64
	batch int
}

// toward are the weights of y in the loss.
func (p problem) toward() []float64 {
	all := make([]float64, len(p.x))
	for i := range all {
		all[i] = math.Cos(float64(i))
	}
	return all
}

func (p problem) String() string {
	return fmt.Sprintf("%+v, gated %v, %d sequences of %d", p.Config, p.gated, p.batch, p.length)
}

// problems are random ones; some of them have experts without tokens, since there are more experts than choices.
func problems(n int) (all []problem) {
	random := rand.New(rand.NewPCG(1, 2))
	maybe := func(x float64) float64 { return x * float64(random.IntN(2)) }
	for len(all) < n {
		c := Config{Experts: 2 + random.IntN(15), Hidden: 1 + random.IntN(6),
			Router: []Router{"", Softmax, Sigmoid}[random.IntN(3)], Normalize: random.IntN(2) == 0,
			Scale: maybe(2.5), Balance: maybe(0.3), ZLoss: maybe(0.2)}
		c.PerToken = 1 + random.IntN(min(4, c.Experts))
		if random.IntN(2) == 0 {
			c.Capacity = 0.5 + random.Float64()
		}
		if c.Router == Sigmoid {
			c.BiasRate = maybe(0.1)
		}
		if groups := 1 + random.IntN(4); c.Experts%groups == 0 && random.IntN(2) == 0 {
			c.Groups, c.GroupsPerToken = groups, 1+random.IntN(groups)
		}
		if c.Validate() != nil {
			continue
		}
		r := reference{c, 1 + random.IntN(7), random.IntN(2) == 0, 1 + random.IntN(9)}
		all = append(all, newProblem(r, 1+random.IntN(3), random))
	}
	return all
}

func newProblem(r reference, batch int, random *rand.Rand) problem {
	p := problem{r, r.random(random), make([]float64, batch*r.length*r.width), batch}
	for i := range p.x {
		p.x[i] = random.NormFloat64()
	}
	return p
}

func (p problem) layer() Layer { return Layer{Config: p.Config, Activate: swish} }

func (p problem) tree() params.Tree { return p.Params("moe", p.width, p.gated) }

// inputs are the weights of the results, the tokens and the parameters.
func (p problem) inputs() []*tensors.Tensor {
	tokens := func(x []float64) *tensors.Tensor {
		return tensors.FromFlatDataAndDimensions(slices.Clone(x), p.batch, p.length, p.width)
	}
	all := []*tensors.Tensor{tokens(p.toward()), tokens(p.x)}
	for _, s := range p.tree() {
		all = append(all, tensors.FromFlatDataAndDimensions(slices.Clone(p.p[s.Name]), s.Shape.Dimensions...))
	}
	return all
}

// applied returns y, term, and the gradients of the reference's loss by the tokens and parameters, for one of n devices
// with equally many tokens.
func (p problem) applied(of dtypes.DType, n int, apply func(in nodes) nodes) func(in nodes) nodes {
	return func(in nodes) nodes {
		toward, in := in[0], in[1:]
		for i := range in {
			in[i] = graph.ConvertDType(in[i], of)
		}
		out := apply(in)
		for i := range out {
			out[i] = graph.ConvertDType(out[i], dtypes.Float64)
		}
		loss := graph.ReduceAllSum(graph.Mul(out[0], toward))
		loss = graph.Add(loss, graph.DivScalar(graph.ReduceAllMean(out[1]), n))
		all := append(out, graph.Gradient(loss, in...)...)
		for i := range all {
			all[i] = graph.ConvertDType(all[i], dtypes.Float64)
		}
		return all
	}
}

func (p problem) apply(in nodes) nodes {
	y, term := p.layer().Apply(p.named(in[1:]), "moe", in[0])
	return nodes{y, term}
}

func (p problem) named(in nodes) params.Nodes {
	named := params.Nodes{}
	for i, s := range p.tree() {
		named[s.Name] = in[i]
	}
	return named
}

func (p problem) run(t testing.TB, b compute.Backend, of dtypes.DType, apply func(in nodes) nodes) (all [][]float64) {
	t.Helper()
	for _, r := range must.Get(devicetest.CallOn(b, p.applied(of, 1, apply), p.inputs()...))(t) {
		all = append(all, tensors.MustCopyFlatData[float64](r))
	}
	return all
}

// want is what run must return.
func (p problem) want() (all [][]float64, names []string) {
	d := p.decide(p.p, p.x)
	y, term := p.reference.apply(p.p, d, p.x)
	all = append(all, y, term, p.gradient(p.p, d, p.x, p.x))
	names = []string{"y", "term", "gradient by x"}
	changes := p.changes(p.p, d)
	for _, s := range p.tree() {
		names = append(names, "gradient by "+s.Name)
		if change, is := changes[s.Name]; is && len(change) > 0 {
			all = append(all, change)
			continue
		}
		all = append(all, p.gradient(p.p, d, p.x, p.p[s.Name]))
	}
	return all, names
}

// near compares lists, relative to the largest number.
func near(t testing.TB, p fmt.Stringer, names []string, got, want [][]float64, bound float64) {
	t.Helper()
	for i := range want {
		if len(got[i]) != len(want[i]) {
			t.Fatalf("%v: %s has %d numbers, want %d", p, names[i], len(got[i]), len(want[i]))
		}
		size := 1e-3
		for _, v := range want[i] {
			size = max(size, math.Abs(v))
		}
		for j, v := range want[i] {
			if !(math.Abs(got[i][j]-v) <= bound*size) {
				t.Errorf("%v: %s, element %d is %g, want %g", p, names[i], j, got[i][j], v)
				break
			}
		}
	}
}

// TestReference: results, terms and gradients are those of the second implementation; in float64 by XLA's operations
// to within what differences of it allow, in float32 to rounding. Recomputed, they are the same.
func TestReference(t *testing.T) {
	for i, p := range problems(12) {
		want, names := p.want()
		near(t, p, names, p.run(t, devicetest.One(), dtypes.Float64, p.apply), want, 1e-7)
		got := p.run(t, devicetest.One(), dtypes.Float32, p.apply)
		near(t, p, names, got, want, 1e-4)
		if i%4 > 0 {
			continue
		}
		recomputed := func(in nodes) nodes { return recompute.Call(p.apply, in...) }
		again := p.run(t, devicetest.One(), dtypes.Float32, recomputed)
		near(t, p, names, again, got, 1e-6)
	}
}

// rounded has tokens and parameters that bfloat16 has too, so that a router in float32 chooses the same experts.
func (p problem) rounded() problem {
	all := values{}
	round := func(x []float64) []float64 {
		out := make([]float64, len(x))
		for i, v := range x {
			out[i] = float64(bfloat16.FromFloat32(float32(v)).Float32())
		}
		return out
	}
	for name, x := range p.p {
		all[name] = round(x)
	}
	p.p, p.x = all, round(p.x)
	return p
}

// TestPrecisions: in half types, and with matmuls of 8-bit floats in loops, results are near.
func TestPrecisions(t *testing.T) {
	fp8 := must.Get(precision.ParsePolicy("fp8"))(t).Matmul
	for i, p := range problems(8) {
		p = p.rounded()
		want, names := p.want()
		if i%2 == 0 {
			near(t, p, names, p.run(t, devicetest.One(), dtypes.BFloat16, p.apply), want, 0.08)
			continue
		}
		near(t, p, names, p.run(t, devicetest.One(), dtypes.Float32, func(in nodes) nodes {
			layer := p.layer()
			layer.Matmul = fp8
			y, term := layer.Apply(p.named(in[1:]), "moe", in[0])
			return nodes{y, term}
		}), want, 0.25)
	}
}

// TestLoops: without kernels, loops compute in float32 too.
func TestLoops(t *testing.T) {
	without := must.Get(xla.Open(xla.Devices(1), xla.Plugin(devicetest.Plugin()), xla.NoKernels()))(t)
	defer without.Close()
	for _, p := range problems(3) {
		want, names := p.want()
		near(t, p, names, p.run(t, without, dtypes.Float32, p.apply), want, 1e-4)
	}
}

// TestSplit: in two programs the gradients are the same.
func TestSplit(t *testing.T) {
	for _, p := range problems(3) {
		s := autodiff.Split{Fn: func(in nodes) nodes { return p.apply(in) }}
		for i := range len(p.tree()) + 1 {
			s.Of = append(s.Of, i)
		}
		out := must.Get(devicetest.Call(func(in nodes) nodes {
			for i := range in {
				in[i] = graph.ConvertDType(in[i], dtypes.Float32)
			}
			toward, in := in[0], in[1:]
			out, saved := s.Forward(in)
			two := s.Backward(in, saved, nodes{toward, graph.OnesLike(out[1])})
			one := p.apply(in)
			loss := graph.Add(graph.ReduceAllSum(graph.Mul(one[0], toward)), graph.ReduceAllSum(one[1]))
			return append(two, graph.Gradient(loss, in...)...)
		}, p.inputs()...))(t)
		for i := range s.Of {
			two, one := tensors.MustCopyFlatData[float32](out[i]), tensors.MustCopyFlatData[float32](out[len(s.Of)+i])
			for j := range two {
				if d := math.Abs(float64(two[j] - one[j])); !(d <= 1e-5*max(1, math.Abs(float64(one[j])))) {
					t.Fatalf("%v, gradient %d, element %d: %g in two programs, %g in one", p, i, j, two[j], one[j])
				}
			}
		}
	}
}

// TestNotANumber: a token that is not a number makes its own result so, and no other token's. Experts are chosen for it
// all the same, each once.
func TestNotANumber(t *testing.T) {
	p := newProblem(reference{Config{Experts: 4, PerToken: 3, Hidden: 2}, 3, true, 5}, 1, rand.New(rand.NewPCG(5, 6)))
	want, _ := p.want()
	p.x[4] = math.NaN() // of token 1
	got := p.run(t, devicetest.One(), dtypes.Float32, p.apply)[0]
	for i, v := range got {
		if nan := math.IsNaN(v); nan != (i/p.width == 1) || !nan && math.Abs(v-want[0][i]) > 1e-5 {
			t.Errorf("result %d of token %d is %g, want %g", i%p.width, i/p.width, v, want[0][i])
		}
	}
	nan := float32(math.NaN())
	out := must.Get(devicetest.Call(func(in nodes) nodes {
		return nodes{numbers(p.choose(in[0]))}
	}, tensors.FromValue([][][]float32{{{nan, 1, 2, 1}, {nan, nan, nan, nan}}})))(t)
	if got := fmt.Sprint(out[0].Value()); got != "[[[2 1 3] [0 1 2]]]" {
		t.Errorf("chosen: %s", got)
	}
}

// TestOnGPUs compiles the layer and its gradients for GPUs, in bfloat16 and with matmuls of 8-bit floats.
func TestOnGPUs(t *testing.T) {
	mesh := must.Get(devicetest.OpenFor(t, "h100", 2).Mesh(xla.Axis("a", 2)))(t)
	p := spreadProblems()[2]
	for _, policy := range []string{"bf16", "fp8"} {
		layer := p.layer()
		layer.Axes, layer.Matmul = []string{"a"}, must.Get(precision.ParsePolicy(policy))(t).Matmul
		places := []xla.Placement{xla.Shard(0, "a"), xla.Shard(0, "a")}
		for _, s := range p.tree() {
			place := xla.Replicated()
			if strings.Contains(s.Name, ".experts.") {
				place = xla.Shard(0, "a")
			}
			places = append(places, place)
		}
		program := must.Get(xla.Compile(mesh, p.applied(dtypes.BFloat16, 2, func(in nodes) nodes {
			y, term := layer.Apply(p.named(in[1:]), "moe", in[0])
			return nodes{y, term}
		}), xla.In(places...).Gives(append([]xla.Placement{places[0], places[0]}, places[1:]...)...)))(t)
		defer program.Close()
		var args []any
		for _, x := range p.inputs() {
			args = append(args, x)
		}
		must.Do(t, program.Prepare(args...))
	}
}
