package xla

import (
	"math"
	"strings"
	"testing"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/shardbook/shardbook/internal/must"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// prepared compiles a graph function for inputs of these shapes.
func prepared(t *testing.T, m *Mesh, fn func([]*graph.Node) *graph.Node, inputs ...shapes.Shape) *Program {
	t.Helper()
	p := must.Get(Compile(m, fn, In(Replicated()).Gives(Replicated())))(t)
	t.Cleanup(p.Close)
	args := make([]any, len(inputs))
	for i, shape := range inputs {
		args[i] = tensors.FromShape(shape)
	}
	must.Do(t, p.Prepare(args...))
	return p
}

func floats(dims ...int) shapes.Shape { return shapes.Make(dtypes.Float32, dims...) }

func list(s ...shapes.Shape) []shapes.Shape { return s }

// repeated runs body n times; XLA knows how often only if n is a constant.
func repeated(n, x *graph.Node, body func(i, x *graph.Node) *graph.Node) *graph.Node {
	return While([]*graph.Node{graph.ScalarZero(x.Graph(), dtypes.Int32), x, n},
		func(s []*graph.Node) *graph.Node { return graph.LessThan(s[0], s[2]) },
		func(s []*graph.Node) []*graph.Node {
			return []*graph.Node{graph.AddScalar(s[0], 1), body(s[0], s[1]), s[2]}
		})[1]
}

// layer returns matrix i of a stack.
func layer(of, i *graph.Node) *graph.Node {
	zero := graph.ScalarZero(i.Graph(), dtypes.Int32)
	return graph.Squeeze(graph.DynamicSlice(of, []*graph.Node{i, zero, zero}, []int{1, 32, 32}), 0)
}

// TestWork compares the first programs with XLA's own cost analysis (HloCostAnalysis: its "flops" and "transcendentals"
// together, and "bytes accessed") of the pinned plugin's programs, by jaxlib 0.10.2 (hlo_module_cost_analysis), since
// the plugin has none. The others are counted by hand: XLA counts a loop as one iteration, and reads all of what it
// scatters to.
func TestWork(t *testing.T) {
	b := must.Get(Open(Devices(2), Plugin("cpu")))(t)
	defer b.Close()
	mesh := must.Get(b.Mesh(Axis("data", 2)))(t)
	const state = 64 * 32 * 4                    // bytes, of most loops
	const start = 2*4 + 2*state                  // bytes: XLA copies what a loop changes, and the counter
	const addOne, compare = 4 + 4 + 4, 4 + 4 + 1 // bytes of counting turns, each of one FLOP
	for _, c := range []struct {
		name   string
		fn     func([]*graph.Node) *graph.Node
		inputs []shapes.Shape
		want   Work
	}{
		{"product", func(x []*graph.Node) *graph.Node { return graph.Dot(x[0], x[1]).Product() },
			list(floats(96, 160), floats(160, 64)), Work{FLOPs: 1966080, Bytes: 126976}},
		{"batched product", func(x []*graph.Node) *graph.Node { return graph.Einsum("bij,bjk->bik", x[0], x[1]) },
			list(floats(6, 24, 40), floats(6, 40, 16)), Work{FLOPs: 184320, Bytes: 47616}},
		{"softmax", func(x []*graph.Node) *graph.Node { return graph.Softmax(x[0], -1) },
			list(floats(128, 256)), Work{FLOPs: 163712, Bytes: 804876}},
		{"MLP with layer norm", func(x []*graph.Node) *graph.Node { return mlp(x[0], x[1], x[2]) },
			list(floats(64, 32), floats(32, 128), floats(128, 32)), Work{FLOPs: 1071296, Bytes: 238852}},
		{"its gradient", func(x []*graph.Node) *graph.Node {
			return graph.Gradient(graph.ReduceAllSum(mlp(x[0], x[1], x[2])), x[1])[0]
		}, list(floats(64, 32), floats(32, 128), floats(128, 32)), Work{FLOPs: 1618112, Bytes: 312584}},
		{"convolution", func(x []*graph.Node) *graph.Node { return graph.Convolve(x[0], x[1]).NoPadding().Done() },
			list(floats(2, 12, 12, 3), floats(5, 5, 3, 8)), Work{FLOPs: 153600, Bytes: 9952}},
		{"all-reduce", func(x []*graph.Node) *graph.Node {
			return Collective{Kind: AllReduce, Reduce: compute.ReduceOpSum, Along: []string{"data"}}.Apply(x[0])[0]
		}, list(floats(10, 100)), Work{FLOPs: 1000, Bytes: 8000}},

		{"product with itself", func(x []*graph.Node) *graph.Node { return graph.Dot(x[0], x[0]).Product() },
			list(floats(32, 32)), Work{FLOPs: 2 * 32 * 32 * 32, Bytes: 2 * 4096}},
		{"sort", func(x []*graph.Node) *graph.Node { return graph.Sort(x[0], -1, true) },
			list(floats(10, 100)), Work{FLOPs: 10 * 100 * 7, Bytes: 2 * 4000}},
		{"embedding's gradient", func(x []*graph.Node) *graph.Node {
			rows := graph.Gather(x[0], graph.Const(x[0].Graph(), [][]int32{{3}, {1}, {3}, {9}}))
			return graph.Gradient(graph.ReduceAllSum(graph.Square(rows)), x[0])[0]
		}, list(floats(500, 64)), Work{
			FLOPs: 4*64 + 4*64,                                                // twice the rows, added up
			Bytes: 500*64*4 + 4 + (1024 + 16 + 1024) + (1024 + 16 + 2*1024)}}, // zeros, rows gathered, rows added
		{"loop over layers", func(x []*graph.Node) *graph.Node {
			return repeated(graph.Const(x[0].Graph(), int32(12)), x[0], func(i, h *graph.Node) *graph.Node {
				return graph.Tanh(graph.Dot(h, layer(x[1], i)).Product())
			})
		}, list(floats(64, 32), floats(12, 32, 32)), Work{
			FLOPs: 12*(2*64*32*32+64*32+1) + 13,
			// the layer is copied, not read in place
			Bytes: start + 12*(2*4+addOne+(2*4096+4)+(2*state+4096)+2*state) + 13*compare}},
		{"update in a loop", func(x []*graph.Node) *graph.Node {
			return repeated(graph.Const(x[0].Graph(), int32(12)), x[0], func(i, all *graph.Node) *graph.Node {
				at := []*graph.Node{i, graph.ScalarZero(i.Graph(), dtypes.Int32)}
				return graph.DynamicUpdateSlice(all, graph.Tanh(graph.DynamicSlice(all, at, []int{1, 100})), at)
			})
		}, list(floats(12, 100)), Work{FLOPs: 12*(100+1) + 13,
			Bytes: 2*4 + 2*4800 + 12*(2*4+addOne+4+2*400) + 13*compare}},
		{"loop in a loop", func(x []*graph.Node) *graph.Node {
			return repeated(graph.Const(x[0].Graph(), int32(3)), x[0], func(_, h *graph.Node) *graph.Node {
				return repeated(graph.Const(h.Graph(), int32(5)), h,
					func(_, h *graph.Node) *graph.Node { return graph.Tanh(h) })
			})
		}, list(floats(64, 32)), Work{
			FLOPs: 15*(64*32+1) + 3*6 + 3*1 + 4,
			Bytes: start + 15*(2*state+addOne) + 18*compare + 3*(2*4+addOne) + 4*compare}},
		{"loop of unknown turns", func(x []*graph.Node) *graph.Node {
			return repeated(x[0], x[1], func(_, h *graph.Node) *graph.Node { return graph.Tanh(h) })
		}, list(shapes.Make(dtypes.Int32), floats(64, 32)), Work{
			FLOPs: 64*32 + 1 + 2, Bytes: start + 2*state + addOne + 2*compare}},
	} {
		p := prepared(t, mesh, c.fn, c.inputs...)
		got := must.Get(p.Work())(t)
		bytes := got.Bytes
		if got.Bytes = c.want.Bytes; got != c.want || math.Abs(bytes-c.want.Bytes) > 0.001*c.want.Bytes {
			operations, _ := p.Operations()
			t.Errorf("%s: %+v and %v bytes, want %+v: %+v", c.name, got, bytes, c.want, operations)
		}
	}
}

// What XLA makes for GPUs, and programs that no XLA makes.
func TestOperationsOfHLO(t *testing.T) {
	const inputs = `
		instructions { name: "a" opcode: "parameter" 
			shape { element_type: F32 dimensions: 8 dimensions: 32 } id: 1 }
		instructions { name: "b" opcode: "parameter"
			shape { element_type: F32 dimensions: 32 dimensions: 16 } parameter_number: 1 id: 2 }`
	const gemm = `shape { element_type: TUPLE tuple_shapes { element_type: F32 dimensions: 8 dimensions: 16 }
		tuple_shapes { element_type: S8 dimensions: 1024 } }
		operand_ids: 1 operand_ids: 2 id: 3 opcode: "custom-call" name: "it"`
	config := func(axis string) string {
		return `backend_config: "{\"gemm_backend_config\":{\"dot_dimension_numbers\":` +
			`{\"lhs_contracting_dimensions\":[\"` + axis + `\"]}}}" `
	}
	scores := func(mask string) string {
		return `backend_config: "{\"cudnn_fmha_backend_config\":{\"mask_type\":\"` + mask +
			`\",\"intermediate_tensor_shape\":{\"dimensions\":[\"2\",\"3\",\"5\",\"7\"]}}}" `
	}
	const gemmBytes = 8*32*4 + 32*16*4 + 8*16*4 + 1024
	for _, c := range []struct {
		name, instructions, kind string
		flops                    float64
		bytes                    int64
	}{
		{"cuBLAS", `custom_call_target: "__cublas$lt$matmul" ` + config("1") + gemm,
			"custom-call", 2 * 8 * 16 * 32, gemmBytes},
		{"cuBLAS with less said", `custom_call_target: "__cublas$gemm" backend_config: "{}" ` + gemm,
			"custom-call", 0, gemmBytes},
		{"cuBLAS with other words", `custom_call_target: "__cublas$gemm" ` + config("x") + gemm,
			"custom-call", 0, gemmBytes},
		{"attention", `custom_call_target: "__cudnn$fmhaSoftmax" ` + scores("NO_MASK") + gemm,
			"custom-call", 4 * 2 * 3 * 5 * 7 * 32, gemmBytes},
		{"causal attention", `custom_call_target: "__cudnn$fmhaSoftmaxBackward" ` + scores("CAUSAL") + gemm,
			"custom-call", 10 * 2 * 3 * (3 + 4 + 5 + 6 + 7) * 32, gemmBytes},
		{"attention with less said", `custom_call_target: "__cudnn$fmhaSoftmax" backend_config: "{}" ` + gemm,
			"custom-call", 0, gemmBytes},
		{"a kernel", `custom_call_target: "mine" ` + gemm, "custom-call", 0, gemmBytes},
		{"a pair", `name: "it" opcode: "all-gather-start" operand_ids: 1 id: 3 shape { element_type: TUPLE
				tuple_shapes { element_type: F32 dimensions: 8 dimensions: 32 }
				tuple_shapes { element_type: F32 dimensions: 16 dimensions: 32 } } }
			instructions { name: "end" opcode: "all-gather-done" operand_ids: 3 id: 4
				shape { element_type: F32 dimensions: 16 dimensions: 32 }`,
			"all-gather", 0, 1024 + 2048},
		{"a wrapped one", `name: "around" opcode: "async-start" operand_ids: 1 called_computation_ids: 1 id: 3`,
			"negate", 4, 32},
		{"a branch", `name: "if" opcode: "conditional" operand_ids: 1 called_computation_ids: 1 id: 3`,
			"negate", 4, 32},
		{"an unknown one", `name: "it" opcode: "leap" operand_ids: 1 shape { element_type: F32 } id: 3`,
			"leap", 0, 1024 + 4},
		{"bfloat16", `name: "it" opcode: "negate" operand_ids: 1 shape { element_type: BF16 dimensions: 8 } id: 3`,
			"negate", 8, 1024 + 16},
		{"complex numbers", `name: "it" opcode: "negate" operand_ids: 1 shape { element_type: C64 dimensions: 8 } id: 3`,
			"negate", 8, 1024 + 64},
		{"without operands", `name: "it" opcode: "dot" shape { element_type: F32 dimensions: 2 }
				dot_dimension_numbers { lhs_contracting_dimensions: 7 } id: 3`,
			"dot", 4, 8},
		{"without computations", `name: "it" opcode: "fusion" shape { element_type: F32 dimensions: 2 } id: 3`,
			"fusion", 0, 8},
		{"that runs itself",
			`name: "it" opcode: "fusion" called_computation_ids: 2 shape { element_type: F32 dimensions: 2 } id: 3`,
			"fusion", 0, 8},
	} {
		text := `name: "step" entry_computation_id: 2
			computations { id: 1 root_id: 2
				instructions { name: "p" opcode: "parameter" shape { element_type: F32 dimensions: 4 } id: 1 }
				instructions { name: "it" opcode: "negate" operand_ids: 1 id: 2
					shape { element_type: F32 dimensions: 4 } }
			}
			computations { id: 2 root_id: 9 ` + inputs + ` instructions { ` + c.instructions + ` } }`
		module := must.Get(protoregistry.GlobalTypes.FindMessageByName("xla.HloModuleProto"))(t)
		m := message{module.New()}
		if err := prototext.Unmarshal([]byte(text), m.Interface()); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		h := readHLO(m)
		want := Operation{Module: "step", Name: "it", Kind: c.kind, FLOPs: c.flops, Bytes: c.bytes, Runs: 1}
		if _, rest, ok := strings.Cut(c.instructions, `custom_call_target: "`); ok {
			want.Target, _, _ = strings.Cut(rest, `"`)
		}
		if got := h.operations(h.entry, 1); len(got) != 1 || got[0] != want {
			t.Errorf("%s: %+v, want %+v", c.name, got, want)
		}
	}
}
