package main

/*
#cgo CFLAGS: -O3
#cgo amd64 CFLAGS: -march=native

// multiply_add does 2·LANES·SUMS floating-point operations a turn, in sums that do not depend on each other: as many as
// hide the latency of an operation on processors with two units for it.
enum { LANES = 16, SUMS = 12 };
typedef float lanes __attribute__((vector_size(4 * LANES)));

static float multiply_add(long turns, float factor, float offset) {
	lanes sum[SUMS] = {};
	for (long t = 0; t < turns; t++)
#pragma GCC unroll 12
		for (int i = 0; i < SUMS; i++) sum[i] = sum[i] * factor + offset;
	lanes all = {};
	for (int i = 0; i < SUMS; i++) all += sum[i];
	return all[0];
}
*/
import "C"

import (
	"context"
	"encoding/json"
	"runtime"
	"time"

	"github.com/shardbook/shardbook/lib/collective/group"
)

// turnFLOPs is what a turn of multiply_add does.
const turnFLOPs = 2 * C.LANES * C.SUMS

// arithmetic is one of the threads that together do as many floating-point operations as the matmuls of a step.
type arithmetic struct {
	threads int
	turns   int
}

func serveArithmetic(context.Context) (subject, func(), error) {
	threads := runtime.GOMAXPROCS(0)
	return serveRanks(threads, func(group.Group) (subject, error) { return &arithmetic{threads: threads}, nil })
}

func (a *arithmetic) prepare(params []byte) (facts, error) {
	var size trainSize
	err := json.Unmarshal(params, &size)
	a.turns = int(size.matmulFLOPs() / turnFLOPs / float64(a.threads))
	return facts{}, err
}

func (a *arithmetic) sample(calls int) (float64, error) {
	begin := time.Now()
	for range calls {
		C.multiply_add(C.long(a.turns), 0.999, 0.001)
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
	return 6 * float64(s.Batch*s.Seq) * (weights + float64(s.Layers*s.Seq*s.Width))
}
