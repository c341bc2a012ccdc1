package xla

import (
	"fmt"
	"slices"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/distributed"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/go-xla/stablehlo"
	"github.com/gomlx/gomlx/core/graph"
)

// CollectiveKind is a kind of collective in XLA.
type CollectiveKind uint8

const (
	AllReduce     CollectiveKind = iota // operands have the same shapes as results
	AllGather                           // Axis grows by the number of ranks
	ReduceScatter                       // Axis shrinks by the number of ranks
	AllToAll                            // Axis shrinks, Concat grows
	Permute                             // rank r sends its operand to rank To[r]
	AllToAllV                           // rows go to ranks by counts; see Rows
)

// String returns XLA's name of the operation.
func (k CollectiveKind) String() string {
	if int(k) >= len(kindNames) {
		return fmt.Sprintf("CollectiveKind(%d)", k)
	}
	return kindNames[k]
}

var kindNames = []string{"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute",
	"all-to-all-v"}

// Collective is a collective operation between the devices of a mesh inside a graph. Use lib/collective, which checks
// arguments and has gradients.
//
// GoMLX has a node only for all-reduce. The other kinds use it with reduction types beyond GoMLX's own, which the
// backend translates.
type Collective struct {
	Kind   CollectiveKind
	Reduce compute.ReduceOpType // for AllReduce and ReduceScatter
	Axis   int                  // the tensor's axis that is joined or split
	Concat int                  // for AllToAll: the axis along which the pieces are joined
	To     []int                // for Permute: the rank that each rank sends to; -1: none

	// Rows is the number of rows of the result, for AllToAllV. Its operands are x, the int32 counts of x's rows for
	// each rank, and the counts of what is received (see collective.AllToAllV). XLA has no such operation. Where no
	// kernel can do it, XLA does an all-to-all of parts that are all as long as x; then a result that is too short is
	// NaN, or integers of 1 bits, and there is no error.
	Rows int

	// Bits adds the operands' bits as integers, for AllReduce and ReduceScatter. If all ranks but one have zeros, the
	// sum is that one's operand bit for bit; a sum of floats would lose the sign of -0 and, on CPUs, subnormal numbers.
	Bits bool

	// Along names the mesh axes whose devices take part, the major one first. Ranks are the devices' indices along
	// them.
	Along []string

	// Note is for the caller; CollectiveOf returns it.
	Note string
}

// Apply adds the operation to the graph of its operands; only AllReduce and AllToAllV have more than one. It panics if
// the graph is not built for a mesh (see Compile).
func (c Collective) Apply(operands ...*graph.Node) []*graph.Node {
	g := operands[0].Graph()
	// The additional operand, which is returned unchanged, makes a node with two results. With one result, GoMLX drops
	// the operation under Checkpoint (docs/upstream.md, "all-reduce under Checkpoint").
	with := append(append([]*graph.Node{}, operands...), graph.Const(g, int32(0)))
	results := g.Distributed().Along(c.Along...).AllReduce(with, c.reduction())
	return results[:len(operands)]
}

// CollectiveOf returns the operation of a node of type NodeTypeAllReduce, and false if it is GoMLX's own.
func CollectiveOf(n *graph.Node) (Collective, bool) {
	return collectiveOf(reductionTypeOf(n))
}

// MeshOf returns the mesh that a graph is built for.
func MeshOf(g *graph.Graph) (*distributed.DeviceMesh, bool) {
	meshes := g.DeviceMeshes()
	if len(meshes) == 0 || meshes[0] == nil {
		return nil, false
	}
	return meshes[0], true
}

// firstNumber is beyond GoMLX's reduction types.
const firstNumber compute.ReduceOpType = 1 << 20

// known are the operations; their numbers are reduction types.
var known numbered[Collective]

// reduction returns the reduction type that stands for an operation.
func (c Collective) reduction() compute.ReduceOpType {
	return firstNumber + compute.ReduceOpType(known.number(fmt.Sprintf("%#v", c), c.clone()))
}

// collectiveOf returns the operation that a reduction type stands for.
func collectiveOf(t compute.ReduceOpType) (Collective, bool) {
	c, ok := known.at(int(t - firstNumber))
	return c.clone(), ok
}

// clone copies the slices, which callers may change.
func (c Collective) clone() Collective {
	c.To, c.Along = slices.Clone(c.To), slices.Clone(c.Along)
	return c
}

// AllReduce writes an all-reduce or another collective; GoMLX calls it. For its own all-reduce GoMLX passes operands of
// one type at a time, for ours all of them.
func (f *function) AllReduce(operands []compute.Value, reduction compute.ReduceOpType,
	groups [][]int) ([]compute.Value, error) {
	local := f.here(operands...)
	c, ours := collectiveOf(reduction)
	if !ours {
		return f.allReduce(Collective{Kind: AllReduce, Reduce: reduction}, local, groups)
	}
	last := len(local) - 1 // the operand that Apply added
	results, err := f.collective(c, local[:last], groups)
	if err != nil {
		return nil, fmt.Errorf("%v: %w", c.Kind, err)
	}
	return append(results, local[last]), nil
}

func (f *function) collective(c Collective, operands []compute.Value, groups [][]int) ([]compute.Value, error) {
	if c.Bits || c.moves() && hloValue(operands[0]).Shape().DType.IsHalfPrecision() {
		return f.onBits(c, operands, groups)
	}
	if c.Kind == AllReduce {
		return f.allReduce(c, operands, groups)
	}
	if results, ok, err := f.meet(c, operands, groups); ok || err != nil {
		return results, err
	}
	if c.Kind == AllToAllV {
		return f.padded(c, operands, groups)
	}
	result, err := f.write(c, hloValue(operands[0]), groups)
	if err != nil {
		return nil, err
	}
	return []compute.Value{newValue(operands[0], result)}, nil
}

// moves reports whether the operation only moves data. Then half types are sent as integers: XLA on CPUs would convert
// them to float32, with twice the bytes.
func (c Collective) moves() bool { return c.Kind != AllReduce && c.Kind != ReduceScatter }

// allReduce writes one operation for each type among the operands, in order of appearance. go-xla would write them in
// random order, and processes that compile the same program would wait for each other (docs/upstream.md, "all-reduce of
// several types").
func (f *function) allReduce(c Collective, operands []compute.Value, groups [][]int) ([]compute.Value, error) {
	results := make([]compute.Value, len(operands))
	for first := range operands {
		if results[first] != nil {
			continue
		}
		var places []int
		var same []compute.Value
		for i := first; i < len(operands); i++ {
			if hloValue(operands[i]).Shape().DType == hloValue(operands[first]).Shape().DType {
				places, same = append(places, i), append(same, operands[i])
			}
		}
		reduced, ok, err := f.meet(c, same, groups)
		if !ok && err == nil {
			reduced, err = f.Function.AllReduce(same, c.Reduce, groups)
		}
		if err != nil {
			return nil, err
		}
		for j, i := range places {
			results[i] = reduced[j]
		}
	}
	return results, nil
}

// onBits does an operation on integers with the bits of operands that are floats.
func (f *function) onBits(c Collective, operands []compute.Value, groups [][]int) ([]compute.Value, error) {
	c.Bits = false
	m := &maker{f: f}
	bits, types := make([]compute.Value, len(operands)), make([]dtypes.DType, len(operands))
	for i, x := range operands {
		types[i], bits[i] = hloValue(x).Shape().DType, x
		if !types[i].IsFloat() {
			continue
		}
		integer, ok := integers[types[i].Size()]
		if !ok {
			return nil, fmt.Errorf("bits of %v: no integer has %d bytes: convert to a type of 1, 2, 4 or 8", types[i],
				types[i].Size())
		}
		bits[i] = m.of(f.Bitcast(x, integer))
	}
	if m.err != nil {
		return nil, m.err
	}
	results, err := f.collective(c, bits, groups)
	if err != nil {
		return nil, err
	}
	for i := range results {
		if types[i].IsFloat() {
			results[i] = m.of(f.Bitcast(results[i], types[i]))
		}
	}
	return results, m.err
}

// integers has the unsigned integer type of each number of bytes.
var integers = map[int]dtypes.DType{1: dtypes.Uint8, 2: dtypes.Uint16, 4: dtypes.Uint32, 8: dtypes.Uint64}

func (f *function) write(c Collective, x *stablehlo.Value, groups [][]int) (*stablehlo.Value, error) {
	switch c.Kind {
	case AllGather:
		return stablehlo.AllGather(x, groups, c.Axis)
	case ReduceScatter:
		return f.writeReduceScatter(c, x, groups)
	case AllToAll:
		return stablehlo.AllToAll(x, groups, c.Axis, c.Concat, len(groups[0]))
	case Permute:
		var pairs [][2]int
		for _, group := range groups {
			for from, to := range c.To {
				if to >= 0 {
					pairs = append(pairs, [2]int{group[from], group[to]})
				}
			}
		}
		return stablehlo.CollectivePermute(x, pairs)
	}
	return nil, fmt.Errorf("no operation of kind %d", c.Kind)
}

// writeReduceScatter writes an operation that go-xla has no function for: it changes the statement of an all-reduce
// with the result's shape into a reduce-scatter of x.
func (f *function) writeReduceScatter(c Collective, x *stablehlo.Value, groups [][]int) (*stablehlo.Value, error) {
	part := shapes.Make(x.Shape().DType, x.Shape().Dimensions...)
	part.Dimensions[c.Axis] /= len(groups[0])
	like, err := f.zeros(part)
	if err != nil {
		return nil, err
	}
	results, err := f.Function.AllReduce([]compute.Value{like}, c.Reduce, groups)
	if err != nil {
		return nil, err
	}
	result := hloValue(results[0])
	statement := statementOf(result)
	statement.OpType = opReduceScatter
	statement.Inputs[0] = x
	statement.Attributes["scatter_dimension"] = int64(c.Axis)
	return result, nil
}

// zeros returns a constant of any shape.
func (f *function) zeros(shape shapes.Shape) (compute.Value, error) {
	zero, err := f.Constant(dtypes.MakeAnySlice(shape.DType, 1))
	if err != nil {
		return nil, err
	}
	return f.BroadcastInDim(zero, shape, nil)
}
