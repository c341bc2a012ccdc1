package ddp

import (
	"context"
	"encoding/binary"
	"math"

	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/precision"
)

// FP8 returns a hook that sends gradients as 1-byte E4M3 numbers, scaled so that the largest element of a message is
// the largest number of the format (Peng et al. 2023, "FP8-LM: Training FP8 Large Language Models", §2.1). Sums of such
// numbers would overflow, so each of N ranks sums a part of the bucket in float32, in the order of the ranks, and sends
// the sums in the same format. Both rounding errors are added at the next step (Tang et al. 2021, "1-bit Adam", §4,
// which compresses twice as well).
//
// For a bucket of n elements a rank gives the group (⌈n/N⌉+4)·(N+1) bytes, in an all-to-all and an all-gather: about a
// quarter of a float32 ring all-reduce. It stores 4·(1+1/N) bytes per element. Gradients must be float32.
func FP8() func() Hook {
	return func() Hook { return &feedback{&fp8{residuals{}}, residuals{}} }
}

// fp8 has the rounding errors of the sums of this rank's part.
type fp8 struct{ errors residuals }

func (e *fp8) reduce(ctx context.Context, g group.Group, grads Gradients, own, sums []float32) error {
	ranks := g.Size()
	part := (len(own) + ranks - 1) / ranks
	of := func(rank int) (from, to int) { return min(rank*part, len(own)), min((rank+1)*part, len(own)) }
	message := part + 4 // the scale comes first
	out, in := make([]byte, ranks*message), make([]byte, ranks*message)
	for rank := range ranks {
		from, to := of(rank)
		pack(own[from:to], out[rank*message:])
	}
	if err := group.AllToAll(ctx, g, out, in); err != nil {
		return err
	}
	from, to := of(g.Rank())
	mine := e.errors.of(grads.Unit, to-from)
	for rank := range ranks {
		unpack(in[rank*message:], mine)
	}
	pack(mine, out)
	dropInfinite(mine)
	if err := group.AllGather(ctx, g, out[:message], in); err != nil {
		return err
	}
	clear(sums)
	for rank := range ranks {
		from, to := of(rank)
		unpack(in[rank*message:], sums[from:to])
	}
	return nil
}

// pack writes numbers as a scale and a byte each, and leaves the rounding errors in x. Infinities become NaNs.
func pack(x []float32, out []byte) {
	largest := 0.0
	for _, v := range x {
		if !infinite(v) {
			largest = max(largest, math.Abs(float64(v)))
		}
	}
	scale := float32(largest / precision.E4M3.Largest())
	binary.LittleEndian.PutUint32(out, math.Float32bits(scale))
	for i, v := range x {
		switch {
		case infinite(v):
			out[4+i] = byte(precision.E4M3.Encode(math.NaN()))
		case scale == 0:
			out[4+i] = 0
		default:
			out[4+i] = byte(precision.E4M3.Encode(float64(v / scale)))
		}
		x[i] -= e4m3[out[4+i]] * scale
	}
}

// unpack adds the numbers that pack wrote to x.
func unpack(in []byte, x []float32) {
	scale := math.Float32frombits(binary.LittleEndian.Uint32(in))
	for i := range x {
		x[i] += e4m3[in[4+i]] * scale
	}
}

// e4m3 are the numbers of all bytes.
var e4m3 = func() (all [256]float32) {
	for b := range all {
		all[b] = float32(precision.E4M3.Decode(uint32(b)))
	}
	return all
}()
