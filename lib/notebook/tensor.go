package notebook

import (
	"fmt"
	"reflect"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/tensors"
)

type tensorPointer = *tensors.Tensor

var tensorType = reflect.TypeFor[tensorPointer]()

// tensor writes t, which may be nil and may be on a device, as its data type, its axes and its bytes in host memory.
// (Its own GobSerialize does not keep the bits of signaling NaNs.)
func (e *encoder) tensor(t *tensors.Tensor) {
	e.flag(t != nil)
	if t == nil || e.err != nil {
		return
	}
	if !t.Ok() {
		e.fail(fmt.Errorf("a tensor has been finalized or was never set"))
		return
	}
	shape := t.Shape()
	if shape.IsTuple() {
		e.fail(fmt.Errorf("a tensor of shape %s is a tuple, which cannot be kept", shape))
		return
	}
	e.count(int(shape.DType))
	e.count(shape.Rank())
	for _, dim := range shape.Dimensions {
		e.count(dim)
	}
	e.flag(shape.AxisNames != nil)
	for _, name := range shape.AxisNames {
		e.text(name)
	}
	if shape.IsZeroSize() {
		return
	}
	if err := t.ConstBytes(e.write); err != nil {
		e.fail(fmt.Errorf("fetching a tensor of shape %s: %w", shape, err))
	}
}

// tensor reads a local tensor; it returns nil for nil and after an error.
func (d *decoder) tensor() *tensors.Tensor {
	if !d.flag() {
		return nil
	}
	shape, ok := d.shape()
	if !ok {
		return nil
	}
	t := tensors.FromShape(shape)
	if shape.IsZeroSize() {
		return t
	}
	data := d.take(int(shape.ByteSize()))
	if shape.DType == dtypes.Bool && !areBools(data) {
		d.fail(errDamaged)
	}
	if d.err != nil {
		return nil
	}
	if err := t.MutableBytes(func(b []byte) { copy(b, data) }); err != nil {
		d.fail(err)
		return nil
	}
	return t
}

// shape reads the shape of a tensor whose bytes fit in what follows.
func (d *decoder) shape() (shape shapes.Shape, ok bool) {
	shape.DType = dtypes.DType(d.count(dtypes.MaxDType))
	if d.err != nil || !shape.DType.IsADType() || shape.DType == dtypes.InvalidDType {
		d.fail(errDamaged)
		return shape, false
	}
	shape.Dimensions = make([]int, d.count(len(d.data)))
	const maxDim = 1 << 62
	for i := range shape.Dimensions {
		shape.Dimensions[i] = d.count(maxDim)
	}
	if d.flag() {
		shape.AxisNames = make([]string, len(shape.Dimensions))
		for i := range shape.AxisNames {
			shape.AxisNames[i] = d.text()
		}
	}
	if d.err != nil {
		return shape, false
	}
	if shape.IsZeroSize() {
		return shape, true
	}
	// Every byte holds 8 elements at most; the product must not overflow before it is found to be too large.
	size, limit := 1, 8*len(d.data)
	for _, dim := range shape.Dimensions {
		if dim > limit/size {
			d.fail(errDamaged)
			return shape, false
		}
		size *= dim
	}
	if shape.ByteSize() > int64(len(d.data)) {
		d.fail(errDamaged)
		return shape, false
	}
	return shape, true
}

func areBools(data []byte) bool {
	for _, b := range data {
		if b > 1 {
			return false
		}
	}
	return true
}
