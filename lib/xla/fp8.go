package xla

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/go-xla/stablehlo"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/internal/plugin"
)

// DotFP8 is a matmul of 8-bit floats: a·bᵀ (B,M,N) for a (B,M,K) and b (B,N,K), which are rounded to the 8-bit types
// ofA and ofB, F8E4M3FN or F8E5M2. The products accumulate in float32, and the sums are rounded to the type of. GoMLX
// has no tensors of 8-bit floats, so a and b have a wider type. Scale them: what is too large for E4M3 becomes NaN or
// the largest number, and for E5M2 an infinity or the largest number, as the device does it.
//
// On CUDA devices for which [HasFP8] holds it is one call of cuBLASLt on tensor cores; a program for other ones does
// not compile. On CPUs XLA computes in a wider type. Like GoMLX's function calls, it has no gradient. It panics on
// other backends and other types.
func DotFP8(a, b *graph.Node, ofA, ofB, of dtypes.DType) *graph.Node {
	backend, ours := a.Graph().Backend().(*Backend)
	if !ours {
		panic(errors.New("a matmul of 8-bit floats needs a backend of xla.Open"))
	}
	d := dotFP8{ofA, ofB, of, backend.info.Platform == plugin.CUDA}
	for _, t := range []dtypes.DType{ofA, ofB} {
		if t != dtypes.F8E4M3FN && t != dtypes.F8E5M2 {
			panic(fmt.Errorf("a matmul of 8-bit floats with operands of type %s: give %s or %s", t, dtypes.F8E4M3FN,
				dtypes.F8E5M2))
		}
	}
	x, y := a.Shape(), b.Shape()
	if x.Rank() != 3 || y.Rank() != 3 || x.Dim(0) != y.Dim(0) || x.Dim(2) != y.Dim(2) {
		panic(fmt.Errorf("a matmul of 8-bit floats of shapes %s and %s: give (B,M,K) and (B,N,K)", x, y))
	}
	results := []shapes.Shape{shapes.Make(of, x.Dim(0), x.Dim(1), y.Dim(1)), x} // two, as standIn needs
	return standIn(dotsFP8.name(fmt.Sprint(d), d), []*graph.Node{a, b}, results)[0]
}

// dotFP8 is a matmul of 8-bit floats.
type dotFP8 struct {
	a, b, of dtypes.DType
	exact    bool // names the algorithm, which XLA's compiler for CPUs does not have
}

var dotsFP8 = numbered[dotFP8]{prefix: "shardbook_fp8_"}

// write writes the matmul in place of a function call. Of the algorithms that XLA has for 8-bit floats, only the exact
// one is named: it accumulates in float32, and is always cuBLASLt's. Without a name XLA may also take Triton's, which
// keeps 14 bits of the sums on an H100.
func (d dotFP8) write(inputs []value, _ *stablehlo.Function) ([]value, error) {
	x, y := hloValue(inputs[0]), hloValue(inputs[1])
	a, err := asFP8(x, d.a)
	if err != nil {
		return nil, err
	}
	b, err := asFP8(y, d.b)
	if err != nil {
		return nil, err
	}
	// go-xla refuses operands of two types, so it gets those before the conversion.
	product, err := stablehlo.DotGeneral(x, []int{2}, []int{0}, y, []int{2}, []int{0}).OutputDType(d.of).Done()
	if err != nil {
		return nil, err
	}
	how := "#stablehlo.dot<lhs_batching_dimensions = [0], rhs_batching_dimensions = [0], " +
		"lhs_contracting_dimensions = [2], rhs_contracting_dimensions = [2]>"
	if d.exact {
		how += fmt.Sprintf(", algorithm = #stablehlo.dot_algorithm<lhs_precision_type = %s, rhs_precision_type = %s, "+
			"accumulation_type = f32, lhs_component_count = 1, rhs_component_count = 1, "+
			"num_primitive_operations = 1, allow_imprecise_accumulation = false>", namesFP8[d.a], namesFP8[d.b])
	}
	statement := statementOf(product)
	statement.Inputs = []*stablehlo.Value{a, b}
	statement.Attributes = signed("dot_dimension_numbers", how, "(%s, %s) -> %s", typeFP8(x, d.a), typeFP8(y, d.b),
		product.Shape().ToStableHLO())
	return []value{newValue(inputs[0], product), inputs[0]}, nil
}

// asFP8 writes a conversion to an 8-bit type.
func asFP8(x *stablehlo.Value, of dtypes.DType) (*stablehlo.Value, error) {
	converted, err := stablehlo.Convert(x, of)
	if err != nil {
		return nil, err
	}
	statementOf(converted).Attributes = signed("fp8", "unit", "(%s) -> %s", x.Shape().ToStableHLO(), typeFP8(x, of))
	return converted, nil
}

// namesFP8 are the types that go-xla cannot write.
var namesFP8 = map[dtypes.DType]string{dtypes.F8E4M3FN: "f8E4M3FN", dtypes.F8E5M2: "f8E5M2"}

// typeFP8 is the type of a value's shape with 8-bit floats.
func typeFP8(like *stablehlo.Value, of dtypes.DType) string {
	text := "tensor<"
	for _, d := range like.Shape().Dimensions {
		text += fmt.Sprint(d, "x")
	}
	return text + namesFP8[of] + ">"
}

// signed returns the attributes of a statement, on one line, followed by its types. go-xla writes the end of the
// attributes and the types that it knows after that, as a comment.
func signed(name, attributes, types string, args ...any) map[string]any {
	return map[string]any{name: verbatim(attributes + " } : " + fmt.Sprintf(types, args...) + " //")}
}

// verbatim is StableHLO as text.
type verbatim string

// ToStableHLO returns the text; go-xla calls it.
func (v verbatim) ToStableHLO() string { return string(v) }

// HasFP8 reports whether the devices multiply 8-bit floats on tensor cores, in graphs of a backend of [Open]: GPUs of
// compute capability 8.9 or later do (Ada, Hopper, Blackwell). Where XLA cannot compile a [DotFP8] although they do,
// compiling the program returns its error.
func HasFP8(g *graph.Graph) bool {
	b, ours := g.Backend().(*Backend)
	return ours && slices.Compare(b.capability[:], []int{8, 9}) >= 0
}
