package main

/*
#cgo CFLAGS: -O3
#cgo amd64 CFLAGS: -march=native

// LANES are the floats of a vector register, and SUMS the sums, each in a register of its own. Sums do not depend on
// each other: as many as hide the latency of a multiply-add on processors that start two in a cycle, and so few that
// all of them, the factor and the offset fit into the registers.
#if defined(__AVX512F__)
enum { LANES = 16 };
#elif defined(__AVX2__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif
enum { SUMS = 12 };
typedef float lanes __attribute__((vector_size(4 * LANES)));

// multiply_add does 2·LANES·SUMS floating-point operations a turn. Sum i begins with i: of equal sums the compiler
// would compute one.
static float multiply_add(long turns, float factor, float offset) {
	lanes sum[SUMS];
	for (int i = 0; i < SUMS; i++) sum[i] = (lanes){} + (float)i;
	for (long t = 0; t < turns; t++)
#pragma GCC unroll 12
		for (int i = 0; i < SUMS; i++) sum[i] = sum[i] * factor + offset;
	float all = 0; // of every lane, so that the compiler leaves none out
	for (int i = 0; i < SUMS; i++)
		for (int k = 0; k < LANES; k++) all += sum[i][k];
	return all;
}
*/
import "C"

import (
	"context"
	"encoding/json"
	"time"

	"github.com/shardbook/shardbook/lib/collective/group"
)

const (
	multiplyAddLanes = C.LANES
	multiplyAddSums  = multiplyAddLanes * C.SUMS

	// turnFLOPs is what a turn of multiplyAdd does.
	turnFLOPs = 2 * multiplyAddSums
)

// multiplyAdd replaces each x of its sums, which begin with 0 to C.SUMS-1 in every lane, by x·factor + offset in every
// turn, and returns their total.
func multiplyAdd(turns int, factor, offset float32) float32 {
	return float32(C.multiply_add(C.long(turns), C.float(factor), C.float(offset)))
}

// arithmetic is one of the threads that together do as many floating-point operations as the matmuls of a step.
type arithmetic struct{ threads, turns int }

const multiplyAddAbout = "the floating-point operations of the step's matmuls, in registers, a thread a core"

// serveArithmetic is the limit of training steps.
var serveArithmetic = serveLimit(func(_ context.Context, threads group.Group) subject {
	return &arithmetic{threads: threads.Size()}
})

func (a *arithmetic) prepare(params []byte) (facts, error) {
	var size trainSize
	err := json.Unmarshal(params, &size)
	a.turns = int(size.matmulFLOPs() / turnFLOPs / float64(a.threads))
	return facts{}, err
}

func (a *arithmetic) sample(calls int) (float64, error) {
	begin := time.Now()
	for range calls {
		multiplyAdd(a.turns, 0.999, 0.001)
	}
	return milliseconds(begin, calls), nil
}

func (a *arithmetic) finish() error { return nil }

// matmulFLOPs are those of a step's matmuls, forward and backward, with the half of the attention that a causal mask
// leaves: 6 for each weight of a matrix and token, and 6·T·d for each block and token (numbers as in Narayanan et al.
// 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", appendix, without
// recomputation).
func (s trainSize) matmulFLOPs() float64 {
	weights := float64(12*s.Layers*s.Width*s.Width + s.Width*s.Vocab)
	return 6 * float64(s.tokens()) * (weights + float64(s.Layers*s.Seq*s.Width))
}
