package ddp

import (
	"context"
	"slices"

	"github.com/gomlx/compute/dtypes/bfloat16"

	"github.com/shardbook/shardbook/lib/collective/group"
)

// BF16 is a hook that all-reduces gradients as bfloat16, rounded to the nearest: half the bytes, 2 for each element.
//
// What a rank's own rounding loses is added to its gradients of the next step. Without that, the ranks' roundings, each
// in proportion to that rank's gradient, need not cancel where the gradients do, and training would settle beside the
// optimum. The group rounds the sum once more, which changes an element of it by no more than its 2⁻⁹-th part, and is
// not made up for.
//
// A rank keeps 4 bytes for each element. Gradients must be float32.
func BF16() func() Hook {
	return func() Hook { return &feedback{&halved{}, residues{}} }
}

type halved struct{ sent []bfloat16.BFloat16 }

func (h *halved) reduce(ctx context.Context, g group.Group, _ Gradients, own, sums []float32) error {
	h.sent = slices.Grow(h.sent[:0], len(own))
	sent := h.sent[:len(own)]
	for i, x := range own {
		sent[i] = bfloat16.FromFloat32(x) // to the nearest, in a tie to even; a NaN that comes of a sum stays one
		own[i] = x - sent[i].Float32()
	}
	if err := group.AllReduce(ctx, g, sent, group.Sum); err != nil {
		return err
	}
	for i, x := range sent {
		sums[i] = x.Float32()
	}
	return nil
}
