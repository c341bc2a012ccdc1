package ddp

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/shardbook/shardbook/lib/collective/group"
)

// ParseHook returns the hook of a name, in any case, as a command line has it: "bf16" is [BF16], "fp8" is [FP8],
// "topk:0.01" is [TopK] with a share, and "powersgd:4" is [PowerSGD] with a rank. An unknown name is an error that
// lists them; so is a setting that is out of range.
//
// All keep what they did not send. It is in no checkpoint, so that a run that goes on from one is not the same bit for
// bit; and it has the scale of the loss that it is of, so that where a dynamic scale changes, it counts for twice as
// much at the next step, or half.
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
		if share, err := strconv.ParseFloat(setting, 64); err == nil {
			return valid(TopK(share), checkShare(share))
		}
	case "powersgd":
		if rank, err := strconv.Atoi(setting); err == nil {
			return valid(PowerSGD(rank), checkRank(rank))
		}
	}
	return nil, fmt.Errorf("ddp: no hook is called %q: choose bf16, fp8, "+
		"topk:SHARE (as topk:0.01) or powersgd:RANK (as powersgd:4)", name)
}

func valid(hook func() Hook, err error) (func() Hook, error) {
	if err != nil {
		return nil, err
	}
	return hook, nil
}

// feedback is a hook that compresses float32 gradients with error feedback (Seide et al. 2014, "1-Bit Stochastic
// Gradient Descent", §3; Karimireddy et al. 2019, "Error Feedback Fixes SignSGD"). Gradients are compressed with what
// was kept back before, and what this loses is kept back in turn: so it is late, but not lost.
//
// What is kept is finite always. An infinity or a NaN goes to all ranks, once, and is not kept: it would come again for
// ever.
type feedback struct {
	compressor
	kept residues
}

// compressor is what hooks with error feedback differ in.
type compressor interface {
	// reduce makes sums of the ranks' gradients: each has own of a bucket, of which it leaves what it did not send. On
	// entry sums are the gradients without what was kept back.
	reduce(ctx context.Context, g group.Group, of Gradients, own, sums []float32) error
}

// Reduce implements [Hook].
func (f *feedback) Reduce(ctx context.Context, g group.Group, grads Gradients) error {
	values, err := grads.Float32()
	if err != nil {
		return err
	}
	kept := f.kept.of(grads.Unit, len(values))
	for i, x := range values {
		kept[i] += x
	}
	err = f.reduce(ctx, g, grads, kept, values)
	dropInfinite(kept)
	return err
}

// residues are numbers that are kept from step to step, by bucket: zeros at first.
type residues map[int][]float32

func (r residues) of(bucket, n int) []float32 {
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

// infinite says whether x is an infinity or a NaN.
func infinite(x float32) bool { return x-x != 0 }
