package zero

import (
	"errors"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/trace"
)

// lowered copies the shards of the gradients down to the host.
func (r *Rank) lowered() ([]*tensors.Tensor, error) {
	defer r.span(trace.Copy, "gradients to host")()
	down := make([]*tensors.Tensor, len(r.grads))
	for i, g := range r.grads {
		data, err := bytesOf(g)
		if err != nil {
			return nil, err
		}
		if n := len(data) / r.shards; r.engine.options.Stage == 1 { // the rank's row
			data = data[r.shard.Rank()*n:][:n]
		}
		if down[i], err = fromBytes(g.DType(), data, r.units[i].size); err != nil {
			return nil, err
		}
	}
	return down, nil
}

// raised copies a shard of the parameters up to the device, and frees it on the host.
func (r *Rank) raised(own *tensors.Tensor) (*tensors.Tensor, error) {
	defer r.span(trace.Copy, "parameters to device")()
	data, err := bytesOf(own)
	if err != nil {
		return nil, err
	}
	t, err := fromBytes(own.DType(), data, own.Shape().Dimensions...)
	if err != nil {
		return nil, err
	}
	on, err := r.engine.backend.Put(t, r.device)
	return on, errors.Join(err, own.FinalizeAll())
}
