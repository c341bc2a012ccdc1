package parallel

import (
	"errors"

	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/xla"
)

// place puts an entry of the state, whole and on the host, on a rank's devices.
func (o *own) place(mesh *xla.Mesh, e entry, whole *tensors.Tensor) (*dtensor.Tensor, error) {
	all, err := e.cut.Stack(whole)
	if err != nil {
		return nil, err
	}
	if e.flat > 0 {
		if all, err = o.flatten(e, all); err != nil {
			return nil, err
		}
	}
	return mesh.Place(all, o.placement(e))
}

// join makes an entry whole again, on the host.
func (o *own) join(e entry, on *dtensor.Tensor) (*tensors.Tensor, error) {
	all, err := merged(on)
	if err != nil {
		return nil, err
	}
	if e.flat > 0 {
		if all, err = o.unflatten(e, all); err != nil {
			return nil, err
		}
	}
	if e.cut == nil {
		return all, nil
	}
	return e.cut.Join(all, e.whole.Shape.Dimensions[e.cut.Axis])
}

// merged copies a placed tensor to the host.
func merged(on *dtensor.Tensor) (*tensors.Tensor, error) {
	if on.ShardShape().Equal(on.Shape()) {
		return on.Shards()[0].LocalClone()
	}
	return on.Merge()
}

// flatten makes one vector of what the devices have of a cut entry, one after another along the axis: the elements of each in
// row-major order, filled up with zeros to shards of equal length.
func (o *own) flatten(e entry, stacked *tensors.Tensor) (*tensors.Tensor, error) {
	run := o.shards() * e.flat
	flat := tensors.FromShape(shapes.Make(e.whole.Shape.DType, e.ranks()*run))
	return flat, e.copied(stacked, flat, run, false)
}

// unflatten undoes flatten.
func (o *own) unflatten(e entry, flat *tensors.Tensor) (*tensors.Tensor, error) {
	shape := e.local.Clone()
	if e.cut != nil {
		shape.Dimensions[e.cut.Axis] *= e.ranks()
	}
	stacked := tensors.FromShape(shape)
	return stacked, e.copied(stacked, flat, o.shards()*e.flat, true)
}

func (e entry) ranks() int {
	if e.cut == nil {
		return 1
	}
	return e.cut.Ranks()
}

// copied copies between the two forms of an entry; run is how many elements each device has in the flat one.
func (e entry) copied(stacked, flat *tensors.Tensor, run int, back bool) error {
	size := e.whole.Shape.DType.Size()
	outer, inner := 1, size // of runs that lie together
	for axis, d := range e.local.Dimensions {
		if e.cut != nil && axis < e.cut.Axis {
			outer *= d
		} else {
			inner *= d
		}
	}
	var err error
	read, write := stacked, flat
	if back {
		read, write = flat, stacked
	}
	failed := read.ConstBytes(func(from []byte) {
		err = write.MutableBytes(func(to []byte) {
			for r := range e.ranks() {
				for k := range outer {
					inStack, inFlat := (k*e.ranks()+r)*inner, r*run*size+k*inner
					if back {
						copy(to[inStack:inStack+inner], from[inFlat:])
					} else {
						copy(to[inFlat:inFlat+inner], from[inStack:])
					}
				}
			}
		})
	})
	return errors.Join(failed, err)
}
