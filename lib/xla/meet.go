package xla

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/go-xla/stablehlo"
	xlashapes "github.com/gomlx/go-xla/types/shapes"

	"github.com/shardbook/shardbook/lib/xla/internal/collective"
)

// On CPUs, collectives are calls of C kernels. XLA's zero the results first, reduce on one thread for each device, and
// then copy; these read each operand and write each result once, on all threads, and no thread waits in them.

// collectiveKernels are the kernels by kind.
var collectiveKernels = func() (all []*Kernel) {
	for kind := range kindNames {
		all = append(all, NewKernel(collective.Kernel(kind)))
	}
	return all
}()

// reductions are the kernels' numbers of reductions.
var reductions = map[compute.ReduceOpType]int64{compute.ReduceOpSum: 1, compute.ReduceOpProduct: 2,
	compute.ReduceOpMax: 3, compute.ReduceOpMin: 4}

// strides are the distances of neighbouring blocks (see plan in internal/collective/move.h).
type strides struct{ outer, inner, device int64 }

// plan describes a collective to the kernel, whose operand it becomes.
type plan struct {
	outer, inner int64
	from, to     strides
	result       []int // dimensions
}

// planOf returns the plan for an operand, and false if it cannot be split evenly.
func (c Collective) planOf(dims []int, ranks int) (p plan, ok bool) {
	p = plan{outer: 1, inner: 1, result: slices.Clone(dims)}
	n, product := int64(ranks), func(dims []int) int64 {
		all := int64(1)
		for _, d := range dims {
			all *= int64(d)
		}
		return all
	}
	if c.Kind == AllReduce || c.Kind == Permute {
		return p, true
	}
	if c.Kind == AllToAllV {
		p.result[0] = c.Rows
		return p, true
	}
	if c.Kind != AllGather { // the axis is split
		if dims[c.Axis]%ranks != 0 {
			return p, false
		}
		p.result[c.Axis] /= ranks
	}
	p.outer = product(dims[:c.Axis])
	switch c.Kind {
	case AllGather:
		p.result[c.Axis] *= ranks
		p.from, p.to = strides{outer: 1}, strides{outer: n, device: 1}
	case ReduceScatter:
		p.from, p.to = strides{outer: n, device: 1}, strides{outer: 1}
	case AllToAll:
		p.result[c.Concat] *= ranks
		if c.Axis <= c.Concat {
			p.inner = product(p.result[c.Axis:c.Concat])
			p.from, p.to = strides{n * p.inner, 1, p.inner}, strides{n * p.inner, n, 1}
		} else {
			p.outer, p.inner = product(dims[:c.Concat]), product(dims[c.Concat:c.Axis])
			p.from, p.to = strides{n * p.inner, n, 1}, strides{n * p.inner, 1, p.inner}
		}
	}
	return p, p.outer > 0 && p.inner > 0
}

// meets reports whether collectives of the function may be calls of the kernels: in functions whose operations the
// compiler does not copy, on neighbouring devices.
func (f *function) meets() bool {
	b := f.builder
	return b.backend.kernels && !b.auto && (f == b.main || f.parent != nil) && b.first >= 0
}

// meetingTypes are those of the kernels.
var meetingTypes = []dtypes.DType{dtypes.Int8, dtypes.Int16, dtypes.Int32, dtypes.Int64, dtypes.Uint8, dtypes.Uint16,
	dtypes.Uint32, dtypes.Uint64, dtypes.Float16, dtypes.BFloat16, dtypes.Float32, dtypes.Float64}

// meet writes a collective as a call of a kernel, if there is one for it.
func (f *function) meet(c Collective, operands []value, groups [][]int) (results []value, ok bool, err error) {
	of, b, reduction := hloValue(operands[0]).Shape(), f.builder, reductions[c.Reduce]
	if c.moves() {
		reduction = 0
	}
	alone := len(groups) == 0 || len(groups[0]) < 2 && c.Kind != AllToAllV
	if !f.meets() || alone || !slices.Contains(meetingTypes, of.DType) || reduction == 0 && !c.moves() {
		return nil, false, nil
	}
	ranks, kernel := len(groups[0]), collectiveKernels[c.Kind]
	p, ok := c.planOf(of.Dimensions, ranks)
	if !ok || !kernel.knownTo(b.backend) {
		return nil, false, nil
	}
	numbers := []int64{b.calls, reduction, p.outer, p.inner, p.from.outer, p.from.inner, p.from.device, p.to.outer,
		p.to.inner, p.to.device, b.first, int64(len(groups)), int64(ranks)}
	b.calls++
	for _, device := range slices.Concat(groups...) {
		numbers = append(numbers, int64(device))
	}
	for rank := range ranks {
		if c.Kind == Permute {
			numbers = append(numbers, int64(slices.Index(c.To, rank)))
		}
	}
	constant, err := f.Constant(numbers, len(numbers))
	if err != nil {
		return nil, false, err
	}
	arrays, beside := operands, []value{constant}
	if c.Kind == AllToAllV {
		arrays, beside = operands[:1], []value{operands[1], constant}
	}
	var shapes []xlashapes.Shape
	for _, x := range arrays {
		if c.Kind == AllReduce {
			p.result = hloValue(x).Shape().Dimensions
		}
		shapes = append(shapes, xlashapes.Make(of.DType, p.result...))
	}
	f.met = true
	results, err = kernel.call(slices.Concat(arrays, beside), shapes)
	if err == nil && (c.Kind == AllReduce || c.Kind == AllToAll && c.Axis == c.Concat) && !b.keeps(operands...) {
		inPlace(statementOf(hloValue(results[0])), len(results))
	}
	return append(results, operands[len(results):]...), true, err
}

// keeps reports whether one of the values is an input of the program that is not donated, which XLA would copy first.
func (b *builder) keeps(values ...value) bool {
	return slices.ContainsFunc(values, func(v value) bool {
		hlo := hloValue(v)
		return slices.Contains(hloFunction(b.main.Function).Inputs, hlo) && hlo.Attributes["jax.buffer_donor"] == nil
	})
}

// inPlace has the results of a call take the memory of its operands.
func inPlace(call *stablehlo.Statement, results int) {
	const one = "#stablehlo.output_operand_alias<output_tuple_indices = [%s], operand_index = %d, operand_tuple_indices = []>"
	var all []string
	for i := range results {
		result := ""
		if results > 1 {
			result = strconv.Itoa(i)
		}
		all = append(all, fmt.Sprintf(one, result, i))
	}
	// go-xla writes strings in quotes, and another type, whose name is not exported, as they are.
	plain := reflect.TypeOf(call.Attributes["operand_layouts"])
	call.Attributes["output_operand_aliases"] = reflect.ValueOf("[" + strings.Join(all, ", ") + "]").Convert(plain).
		Interface()
}
