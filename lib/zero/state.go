package zero

import (
	"fmt"
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/train"
)

// entry is one of the arrays that train.Recipe.State lists, and what a rank has of it.
type entry struct {
	whole, part params.Spec
	sharded     bool // else every rank has the whole
}

// entries lists a recipe's state: the parameters, and the rest.
func entries(r train.Recipe, l layout) ([]entry, error) {
	states, err := optim.StatesOfParts(r.Optimizer(), l.tree, l.parts())
	if err != nil {
		return nil, err
	}
	var all []entry
	for i, whole := range r.State() {
		e := entry{whole: whole, part: whole}
		switch {
		case i < len(l.tree):
			e.part, e.sharded = params.New(whole.Name, whole.Shape.DType, l.length(i)), true
		case i < len(l.tree)+len(states):
			s := states[i-len(l.tree)]
			e.part, e.sharded = s.Spec, s.Axis == 0
		}
		if e.sharded && len(e.part.Shape.Dimensions) != 1 {
			return nil, fmt.Errorf("zero: the state %s of a flat shard has shape %s: rules must keep a vector for it", whole.Name, e.part.Shape)
		}
		all = append(all, e)
	}
	return all, nil
}

// ranges are what a rank has of the state.
func ranges(all []entry, rank int) []checkpoint.Range {
	want := make([]checkpoint.Range, len(all))
	for i, e := range all {
		want[i] = checkpoint.Range{Spec: e.whole, Length: e.part.Size()}
		if e.sharded {
			want[i].From = rank * e.part.Size()
		}
	}
	return want
}

// cutOut returns a range of a whole tensor of the host as a vector; what lies beyond its end is zero.
func cutOut(whole *tensors.Tensor, r checkpoint.Range) (*tensors.Tensor, error) {
	vector := tensors.FromShape(shapes.Make(whole.DType(), r.Length))
	size := whole.DType().Size()
	var e error
	err := whole.ConstBytes(func(from []byte) {
		e = vector.MutableBytes(func(to []byte) { copy(to, from[min(len(from), r.From*size):]) })
	})
	if err == nil {
		err = e
	}
	return vector, err
}

// bytesOf copies a tensor's contents, wherever it lies.
func bytesOf(t *tensors.Tensor) (data []byte, err error) {
	if !t.HasLocal() && !t.IsShared() {
		defer t.FinalizeLocal() // which reading makes
	}
	err = t.ConstBytes(func(b []byte) { data = slices.Clone(b) })
	return data, err
}

// fromBytes makes a tensor of the host of contents, which may be shorter: the rest is zeros.
func fromBytes(dtype dtypes.DType, data []byte, dims ...int) (*tensors.Tensor, error) {
	t := tensors.FromShape(shapes.Make(dtype, dims...))
	err := t.MutableBytes(func(to []byte) { copy(to, data) })
	return t, err
}

// unitBytes puts a rank's shards of parameters, as [ranges] has them, together to the contents of its shard of a unit.
func (l *layout) unitBytes(u unit, parts []*tensors.Tensor) (data []byte, err error) {
	for _, at := range u.places {
		b, err := bytesOf(parts[at])
		if err != nil {
			return nil, err
		}
		data = append(data, b...)
	}
	return data, nil
}

// unitParts cuts a rank's shard of a unit, as contents, into those of its parameters, as they are saved.
func (l *layout) unitParts(u unit, data []byte, rank int) ([]checkpoint.Part, error) {
	var parts []checkpoint.Part
	for k, at := range u.places {
		spec, n := l.tree[at], l.tree[at].Shape.DType.Size()
		value, err := fromBytes(spec.Shape.DType, data[u.offsets[k]*n:][:u.lengths[k]*n], u.lengths[k])
		if err != nil {
			return nil, err
		}
		parts = append(parts, checkpoint.Part{Spec: spec, From: rank * u.lengths[k], Value: value})
	}
	return parts, nil
}

// wholeParams puts the parameters together out of all ranks' shards of the units: matrices, as contents, with one row for
// each rank.
func (l *layout) wholeParams(units [][]byte) (params.Named[*tensors.Tensor], error) {
	all := params.Named[*tensors.Tensor]{}
	for i, u := range l.units {
		for k, at := range u.places {
			spec, n := l.tree[at], l.tree[at].Shape.DType.Size()
			var data []byte
			for rank := range l.shards {
				data = append(data, units[i][(rank*u.size+u.offsets[k])*n:][:u.lengths[k]*n]...)
			}
			value, err := fromBytes(spec.Shape.DType, data[:spec.Bytes()], spec.Shape.Dimensions...)
			if err != nil {
				return nil, err
			}
			all[spec.Name] = value
		}
	}
	return all, nil
}
