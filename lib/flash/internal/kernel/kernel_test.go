package kernel_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/flash/internal/kernel"
	"github.com/shardbook/shardbook/lib/xla"
)

func TestMain(m *testing.M) { devicetest.Main(m) }

// part replaces an operand or a result with an invalid one.
type part struct {
	results bool
	at      int
	shape   shapes.Shape // an invalid one removes it
	want    string
}

// A wrong operand or result is an error that names it, before any memory is touched.
func TestErrors(t *testing.T) {
	f32 := func(dims ...int) shapes.Shape { return shapes.Make(dtypes.Float32, dims...) }
	half := func(dims ...int) shapes.Shape { return shapes.Make(dtypes.BFloat16, dims...) }
	s32 := func(dims ...int) shapes.Shape { return shapes.Make(dtypes.Int32, dims...) }
	const B, T, S, H, K, D, E = 2, 5, 7, 4, 2, 8, 3
	shared := []shapes.Shape{f32(B, T, H, D), f32(B, S, K, D), f32(B, S, K, E),
		s32(T), s32(S), s32(B, T), s32(B, S), s32(3)}
	sharedWrong := []part{
		{at: 0, shape: s32(B, T, H, D), want: "must be float32, float16 or bfloat16"},
		{at: 0, shape: shapes.Make(dtypes.Float64, B, T, H, D), want: "must be float32, float16 or bfloat16"},
		{at: 0, shape: half(B, T, H, D), want: "flash: k is float32[2, 7, 2, 8], want bfloat16[any, any, any, any]"},
		{at: 0, shape: f32(), want: "flash: q is float32[], want float32[any, any, any, any]"},
		{at: 0, shape: f32(B, T, H*D), want: "flash: q is float32[2, 5, 32], want"},
		{at: 0, shape: f32(B, 0, H, D), want: "must not be empty"},
		{at: 0, shape: f32(B+1, T, H, D), want: "flash: k is float32[2, 7, 2, 8], want float32[3, any, any, 8]"},
		{at: 0, shape: f32(B, T, H+1, D), want: "the heads of q must be a multiple of those of k"},
		{at: 1, shape: half(B, S, K, D), want: "flash: k is bfloat16"},
		{at: 1, shape: f32(S, K, D), want: "flash: k is float32[7, 2, 8], want float32[any, any, any, any]"},
		{at: 1, shape: f32(B, S, 0, D), want: "must not be empty"},
		{at: 1, shape: f32(B, S, K, D+1), want: "flash: k is float32[2, 7, 2, 9], want float32[2, any, any, 8]"},
		{at: 1, shape: f32(B, S+1, K, D), want: "flash: v is float32[2, 7, 2, 3], want float32[2, 8, 2, any]"},
		{at: 2, shape: half(B, S, K, E), want: "flash: v is bfloat16"},
		{at: 2, shape: f32(1), want: "flash: v is float32[1], want float32[2, 7, 2, any]"},
		{at: 2, shape: f32(B, S, K, 0), want: "v must not be empty"},
		{at: 2, shape: f32(B, S, 1, E), want: "flash: v is float32[2, 7, 1, 3]"},
		{at: 3, shape: s32(T - 1), want: "flash: query positions is int32[4], want int32[5]"},
		{at: 3, shape: f32(T), want: "flash: query positions is float32[5]"},
		{at: 3, shape: s32(), want: "flash: query positions is int32[], want int32[5]"},
		{at: 4, shape: s32(T), want: "flash: key positions is int32[5], want int32[7]"},
		{at: 5, shape: s32(B, S), want: "flash: query segments is int32[2, 7], want int32[2, 5]"},
		{at: 5, shape: s32(0), want: "segments are given for both queries and keys or for none"},
		{at: 6, shape: s32(S), want: "flash: key segments is int32[7], want int32[2, 7]"},
		{at: 7, shape: s32(2), want: "flash: numbers is int32[2], want int32[3]"},
		{at: 7, shape: f32(3), want: "flash: numbers is float32[3]"},
		{at: 7, want: "operands and 3 results: it takes"},
		{results: true, at: 2, want: "operands and 2 results: it takes"},
	}
	out, statistics := f32(B, T, H, E), f32(B, T, H)
	for _, c := range []struct {
		name              string
		kernel            *xla.Kernel
		operands, results []shapes.Shape
		wrong             []part
	}{
		{"forward", kernel.Forward, shared, []shapes.Shape{out, statistics, statistics}, append(sharedWrong, []part{
			{results: true, at: 0, shape: f32(B, T, H, D),
				want: "flash: the output is float32[2, 5, 4, 8], want float32[2, 5, 4, 3]"},
			{results: true, at: 0, shape: half(B, T, H, E),
				want: "flash: the output is bfloat16[2, 5, 4, 3], want float32"},
			{results: true, at: 1, shape: f32(B, T), want: "flash: the largest scores is float32[2, 5], want " +
				"float32[2, 5, 4]"},
			{results: true, at: 2, shape: s32(B, T, H),
				want: "flash: the sums is int32[2, 5, 4], want float32[2, 5, 4]"},
		}...)},
		{"backward", kernel.Backward, append(slices.Clone(shared), out, statistics, statistics, out), shared[:3],
			[]part{
				{at: 1, shape: f32(B, S, K, D+1), want: "flash: k is float32[2, 7, 2, 9]"},
				{at: 11, want: "flash: the call has 11 operands and 3 results: it takes 12 and gives 3"},
				{at: 8, shape: f32(B, T, H, D), want: "flash: the output is float32[2, 5, 4, 8]"},
				{at: 9, shape: f32(B, T), want: "flash: the largest scores is float32[2, 5]"},
				{at: 10, shape: half(B, T, H), want: "flash: the sums is bfloat16[2, 5, 4]"},
				{at: 11, shape: f32(B, H, T, E), want: "flash: the output's gradient is float32[2, 4, 5, 3]"},
				{results: true, at: 0, shape: f32(B, T, D, H), want: "flash: q's gradient is float32[2, 5, 8, 4]"},
				{results: true, at: 1, shape: f32(B, S, H, D),
					want: "flash: k's gradient is float32[2, 7, 4, 8], want float32[2, 7, 2, 8]"},
				{results: true, at: 2, shape: half(B, S, K, E), want: "flash: v's gradient is bfloat16[2, 7, 2, 3]"},
			}},
	} {
		if err := call(c.kernel, c.operands, c.results); err != nil {
			t.Errorf("%s: valid operands: %v", c.name, err)
		}
		for _, p := range c.wrong {
			operands, results := slices.Clone(c.operands), slices.Clone(c.results)
			changed := &operands
			if p.results {
				changed = &results
			}
			if p.shape.Ok() {
				(*changed)[p.at] = p.shape
			} else {
				*changed = slices.Delete(*changed, p.at, p.at+1)
			}
			if err := call(c.kernel, operands, results); err == nil || !strings.Contains(err.Error(), p.want) {
				t.Errorf("%s: error %v, want %q", c.name, err, p.want)
			}
		}
	}
}

// call calls a kernel with zeros from an XLA program.
func call(k *xla.Kernel, operands, results []shapes.Shape) error {
	exec, err := graph.NewExec(devicetest.One(), func(g *graph.Graph) []*graph.Node {
		in := make([]*graph.Node, len(operands))
		for i, shape := range operands {
			in[i] = graph.Zeros(g, shape)
		}
		return k.Call(in, results, func([]*graph.Node) []*graph.Node { panic("the kernel is not called") })
	})
	if err != nil {
		return err
	}
	defer exec.Finalize()
	_, err = exec.Call()
	return err
}
