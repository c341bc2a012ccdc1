package ddp

import (
	"fmt"
	"strconv"
	"strings"
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

// residues are what a hook has kept back, by bucket: error feedback (Seide et al. 2014, "1-Bit Stochastic Gradient
// Descent", §3; Karimireddy et al. 2019, "Error Feedback Fixes SignSGD"). Gradients are compressed with what was kept
// back before, and what this loses is kept back in turn: so it is late, but not lost.
//
// They are finite always. An infinity or a NaN goes to all ranks, once, and is not kept: it would come again for ever.
type residues map[int][]float32

// of returns those of a bucket, which are zeros at first.
func (r residues) of(grads Gradients) []float32 { return r.sized(grads.Unit, grads.Data.Len) }

// sized returns those of some elements of a bucket.
func (r residues) sized(bucket, n int) []float32 {
	if len(r[bucket]) != n {
		r[bucket] = make([]float32, n)
	}
	return r[bucket]
}

// infinite says whether x is an infinity or a NaN.
func infinite(x float32) bool { return x-x != 0 }
