package zero

import (
	"errors"
	"slices"

	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// placements say how what is held lies on the mesh.
func (r *Run) placements() []xla.Placement {
	shard := xla.Shard(0, train.Axis)
	h := heldBy[xla.Placement]{weights: slices.Repeat([]xla.Placement{shard}, len(r.units))}
	if r.policy.Mixed() {
		h.masters = h.weights
	}
	if r.options.Stage < 3 {
		h.weights = slices.Repeat([]xla.Placement{xla.Replicated()}, len(r.units))
	}
	for _, e := range r.entries[len(r.tree):] {
		if e.sharded {
			h.rest = append(h.rest, shard)
		} else {
			h.rest = append(h.rest, xla.Replicated())
		}
	}
	return h.all()
}

// place puts a state on the devices in place of the one that is there, of the ranges that of gives of entry i, rank by rank.
// An error leaves that one.
func (r *Run) place(of func(want checkpoint.Range, i int) (*tensors.Tensor, error)) error {
	units, rest := make([][]byte, len(r.units)), make([][]byte, len(r.entries)-len(r.tree)) // all ranks', one after another
	for rank := range r.shards {
		var own []*tensors.Tensor
		for i, want := range ranges(r.entries, rank) {
			v, err := of(want, i)
			if err != nil {
				return err
			}
			own = append(own, v)
		}
		for i, u := range r.units {
			data, err := r.unitBytes(u, own)
			if err != nil {
				return err
			}
			units[i] = append(units[i], data...)
		}
		for i, e := range r.entries[len(r.tree):] {
			if rank > 0 && !e.sharded {
				continue
			}
			data, err := bytesOf(own[len(r.tree)+i])
			if err != nil {
				return err
			}
			rest[i] = append(rest[i], data...)
		}
	}
	h, err := r.arrays(units, rest)
	if err != nil {
		return err
	}
	var placed []*dtensor.Tensor
	on := r.placements()
	for i, t := range h.all() {
		p, err := r.mesh.Place(t, on[i])
		if err != nil {
			return errors.Join(err, freeAll(placed))
		}
		placed = append(placed, p)
	}
	err = r.free()
	r.held = split(placed, len(r.units), r.policy.Mixed())
	return err
}

// arrays makes what is held, on the host and of all ranks, of the contents of the units and of the rest of the state.
func (r *Run) arrays(units, rest [][]byte) (h heldBy[*tensors.Tensor], err error) {
	for i, u := range r.units {
		shards := []int{r.shards * u.size}
		dims := shards
		if r.options.Stage < 3 {
			dims = []int{r.shards, u.size}
		}
		w, err := fromBytes(r.policy.Params, units[i], dims...)
		if err != nil {
			return h, err
		}
		if w, err = train.Convert(w, r.policy.Compute); err != nil {
			return h, err
		}
		h.weights = append(h.weights, w)
		if !r.policy.Mixed() {
			continue
		}
		master, err := fromBytes(r.policy.Params, units[i], shards...)
		if err != nil {
			return h, err
		}
		h.masters = append(h.masters, master)
	}
	for i, e := range r.entries[len(r.tree):] {
		dims := e.part.Shape.Dimensions
		if e.sharded {
			dims = []int{r.shards * e.part.Size()}
		}
		t, err := fromBytes(e.whole.Shape.DType, rest[i], dims...)
		if err != nil {
			return h, err
		}
		h.rest = append(h.rest, t)
	}
	return h, nil
}

// freeAll frees device memory at once: the garbage collector would come late.
func freeAll(values []*dtensor.Tensor) error {
	var errs []error
	for _, v := range values {
		errs = append(errs, v.FinalizeAll())
	}
	return errors.Join(errs...)
}

func (r *Run) free() error {
	old := r.held.all()
	r.held = heldBy[*dtensor.Tensor]{}
	return freeAll(old)
}

// kept returns the contents of a rank's shard of a unit, in the type that parameters are kept in.
func (r *Run) kept(unit, rank int) ([]byte, error) {
	if r.policy.Mixed() {
		return bytesOf(r.held.masters[unit].Shards()[rank])
	}
	data, err := bytesOf(r.held.weights[unit].Shards()[rank])
	if err == nil && r.options.Stage < 3 {
		n := len(data) / r.shards
		data = data[rank*n : (rank+1)*n]
	}
	return data, err
}
