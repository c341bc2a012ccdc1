package ddp

import (
	"context"
	"slices"

	"github.com/gomlx/compute/dtypes/bfloat16"

	"github.com/shardbook/shardbook/lib/collective/group"
)

// BF16 returns a hook that all-reduces gradients as bfloat16, rounded to nearest: 2 bytes per element, half of float32.
//
// Each rank adds the rounding error of its gradients to those of the next step. Without that, the ranks' errors need
// not cancel where their gradients do, and training would settle beside the optimum. The sum over the ranks is rounded
// once more, by at most 2⁻⁹ of an element; that error is not fed back.
//
// A rank stores 4 bytes per element. Gradients must be float32.
func BF16() func() Hook {
	return func() Hook { return &feedback{&halved{}, residuals{}} }
}

type halved struct{ sent []bfloat16.BFloat16 }

func (h *halved) reduce(ctx context.Context, g group.Group, _ Gradients, own, sums []float32) error {
	h.sent = slices.Grow(h.sent[:0], len(own))
	sent := h.sent[:len(own)]
	for i, x := range own {
		sent[i] = bfloat16.FromFloat32(x) // ties to even; NaNs stay NaNs
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
