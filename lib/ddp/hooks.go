package ddp

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/shardbook/shardbook/lib/collective/group"
)

// ParseHook returns the hook for a name as in a command line, in upper or lower case: "bf16" is [BF16], "fp8" is [FP8],
// "topk:0.01" is [TopK] with a fraction, and "powersgd:4" is [PowerSGD] with a rank. It returns an error for other
// names and for invalid settings.
//
// These hooks add the compression errors of a step to the gradients of the next one. The errors are not in checkpoints,
// so a resumed run differs in bits. They are scaled like the loss, so when a dynamic loss scale is doubled or halved,
// they count half or twice as much in the next step.
func ParseHook(name string) (func() Hook, error) {
	kind, setting, set := strings.Cut(strings.ToLower(name), ":")
	switch kind {
	case "bf16":
		if !set {
			return BF16(), nil
		}
	case "fp8":
		if !set {
			return FP8(), nil
		}
	case "topk":
		if fraction, err := strconv.ParseFloat(setting, 64); err == nil {
			return valid(TopK(fraction), checkFraction(fraction))
		}
	case "powersgd":
		if rank, err := strconv.Atoi(setting); err == nil {
			return valid(PowerSGD(rank), checkRank(rank))
		}
	}
	return nil, fmt.Errorf("ddp: no hook is called %q: choose bf16, fp8, "+
		"topk:FRACTION (as topk:0.01) or powersgd:RANK (as powersgd:4)", name)
}

func valid(hook func() Hook, err error) (func() Hook, error) {
	if err != nil {
		return nil, err
	}
	return hook, nil
}

// feedback compresses float32 gradients with error feedback (Seide et al. 2014, "1-Bit Stochastic Gradient Descent",
// §3; Karimireddy et al. 2019, "Error Feedback Fixes SignSGD"): it adds the compression error of each step to the
// gradients of the next one.
//
// Stored errors are finite: an infinity or a NaN is sent once and not stored, or it would come back in each step.
type feedback struct {
	compressor
	errors residuals
}

// compressor is a method of compression.
type compressor interface {
	// reduce writes the sums over all ranks of own, this rank's gradients with the stored errors, to sums, and leaves
	// in own what it did not send. On entry sums are the gradients without the stored errors.
	reduce(ctx context.Context, g group.Group, of Gradients, own, sums []float32) error
}

// Reduce implements [Hook].
func (f *feedback) Reduce(ctx context.Context, g group.Group, grads Gradients) error {
	values, err := grads.Float32()
	if err != nil {
		return err
	}
	own := f.errors.of(grads.Unit, len(values))
	for i, x := range values {
		own[i] += x
	}
	err = f.reduce(ctx, g, grads, own, values)
	dropInfinite(own)
	return err
}

// residuals are compression errors by bucket, zeros at first.
type residuals map[int][]float32

func (r residuals) of(bucket, n int) []float32 {
	if len(r[bucket]) != n {
		r[bucket] = make([]float32, n)
	}
	return r[bucket]
}

func dropInfinite(x []float32) {
	for i, v := range x {
		if infinite(v) {
			x[i] = 0
		}
	}
}

// infinite reports whether x is an infinity or a NaN.
func infinite(x float32) bool { return x-x != 0 }
