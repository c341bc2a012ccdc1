//go:build mpi

package mpi_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gomlx/compute/dtypes/bfloat16"
	"github.com/gomlx/compute/dtypes/float16"

	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/collective/mpi"
)

func init() {
	cases["background"] = background
	cases["rounding"] = rounding
	cases["waiting"] = waiting
	cases["alone"] = alone
	cases["same bits"] = sameBits
	cases["foreign memory"] = foreignMemory
}

// background splits the world in two ways, and has collectives of both groups and
// messages in both directions under way at once.
func background(ctx context.Context, r *rank) error {
	half, err := r.Split(ctx, r.Rank()%2, -r.Rank())
	if err != nil {
		return err
	}
	if want := (r.Size() - 1 - r.Rank()) / 2; half.Rank() != want {
		return fmt.Errorf("rank %d is rank %d of its half, want %d: the keys order it from the last to the first",
			r.Rank(), half.Rank(), want)
	}
	none, err := r.Split(ctx, -1, 0)
	if err != nil || none != nil {
		return fmt.Errorf("a negative color gives the group %v and the error %v", none, err)
	}
	peer := r.Rank() ^ 1
	for round := range 20 {
		const n = 50_000
		fill := func(v int) []int64 { return slices.Repeat([]int64{int64(v)}, n) }
		all, some, all2 := fill(r.Rank()+round), fill(r.Rank()*round), fill(1)
		to, from := fill(r.Rank()), fill(-1)
		pending := []*group.Pending{
			r.Start(ctx, group.AllReduceCall(all, group.Sum)),
			half.Start(ctx, group.AllReduceCall(some, group.Max)),
			r.Start(ctx, group.SendCall(to, peer)),
			r.Start(ctx, group.AllReduceCall(all2, group.Sum)),
			r.Start(ctx, group.RecvCall(from, peer)),
			half.Start(ctx, group.BarrierCall()),
		}
		if round%2 == 1 {
			slices.Reverse(pending)
		}
		if err := group.WaitAll(pending...); err != nil {
			return err
		}
		top := r.Size() - 1 // the largest rank of this half
		if (top-r.Rank())%2 != 0 {
			top--
		}
		got := []int64{all[n-1], some[n-1], all2[n-1], from[n-1]}
		want := []int64{
			int64(r.Size()*(r.Size()-1)/2 + r.Size()*round),
			int64(top * round),
			int64(r.Size()),
			int64(peer),
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("round %d: rank %d has %v, want %v", round, r.Rank(), got, want)
		}
	}
	var dump strings.Builder
	if err := r.Dump(&dump); err != nil {
		return err
	}
	for _, want := range []string{
		fmt.Sprintf("rank %d: ", r.Rank()), "all-reduce #42 (sum of 50000 int64)", "barrier #40 of split #1 color ",
		fmt.Sprintf("send #20 (50000 int64 to rank %d)", peer),
	} {
		if !strings.Contains(dump.String(), want) {
			return fmt.Errorf("the dump has no %q:\n%s", want, dump.String())
		}
	}
	return nil
}

// rounding has two ranks, so that each element is rounded once and the result is known to the bit.
func rounding(ctx context.Context, r *rank) error {
	const n = 1 << 16
	values := func(rank int) (b []bfloat16.BFloat16, f []float16.Float16) {
		for i := range n {
			h := uint16(i * (2*rank + 1) * 40503)
			b = append(b, bfloat16.BFloat16(h))
			f = append(f, float16.FromBits(h))
		}
		return b, f
	}
	b0, f0 := values(0)
	b1, f1 := values(1)
	for op := group.Sum; op <= group.Min; op++ {
		apply := func(x, y float32) float32 {
			switch op {
			case group.Product:
				return x * y
			case group.Max:
				return max(x, y)
			case group.Min:
				return min(x, y)
			}
			return x + y
		}
		b, f := values(r.Rank())
		if err := firstError(group.AllReduce(ctx, r, b, op), group.AllReduce(ctx, r, f, op)); err != nil {
			return err
		}
		for i := range n {
			wantB := round(apply(b0[i].Float32(), b1[i].Float32()), 8, -126, 127)
			wantF := round(apply(f0[i].Float32(), f1[i].Float32()), 11, -14, 15)
			if op == group.Mean {
				wantB, wantF = round(wantB/2, 8, -126, 127), round(wantF/2, 11, -14, 15)
			}
			if got := b[i].Float32(); got != wantB && (got == got || wantB == wantB) {
				return fmt.Errorf("%v of bfloat16 %v and %v is %v, want %v", op, b0[i], b1[i], got, wantB)
			}
			if got := f[i].Float32(); got != wantF && (got == got || wantF == wantF) {
				return fmt.Errorf("%v of float16 %v and %v is %v, want %v", op, f0[i], f1[i], got, wantF)
			}
		}
	}
	return nil
}

// round is x in a format with the given numbers of significant bits and exponents, to nearest, ties to even.
func round(x float32, bits, least, most int) float32 {
	_, exponent := math.Frexp(float64(x)) // |x| is in [2^(exponent-1), 2^exponent)
	step := math.Ldexp(1, max(exponent-1, least)+1-bits)
	rounded := math.RoundToEven(float64(x)/step) * step
	if math.Abs(rounded) >= math.Ldexp(1, most+1) {
		return float32(math.Inf(1) * rounded)
	}
	return float32(rounded)
}

// sameBits reduces numbers whose sum depends on the order, and compares the ranks' results.
func sameBits(ctx context.Context, r *rank) error {
	rng := rand.New(rand.NewPCG(3, uint64(r.Rank())))
	for _, n := range []int{1, 2, 5, 100, 3000, 100_000, 1 << 20} {
		wide, narrow := make([]float32, n), make([]bfloat16.BFloat16, n)
		for i := range n {
			wide[i] = float32(rng.NormFloat64())
			narrow[i] = bfloat16.FromFloat32(wide[i])
		}
		if err := firstError(group.AllReduce(ctx, r, wide, group.Sum), group.AllReduce(ctx, r, narrow,
			group.Mean)); err != nil {
			return err
		}
		firstWide, firstNarrow := slices.Clone(wide), slices.Clone(narrow)
		err := firstError(group.Broadcast(ctx, r, firstWide, 0), group.Broadcast(ctx, r, firstNarrow, 0))
		if err != nil {
			return err
		}
		if !slices.Equal(wide, firstWide) || !slices.Equal(narrow, firstNarrow) {
			return fmt.Errorf("of %d numbers, rank %d gets another sum than rank 0", n, r.Rank())
		}
	}
	return nil
}

// foreignMemory works on memory that is not Go's, as a device's is not.
func foreignMemory(ctx context.Context, r *rank) error {
	const n = 1 << 16
	memory, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return err
	}
	for i := range memory {
		memory[i] = byte(r.Rank() + 1)
	}
	if err := group.AllReduce(ctx, r, memory, group.Product); err != nil {
		return err
	}
	for i, v := range memory {
		if v != 24 {
			return fmt.Errorf("element %d is %d, want 4! = 24", i, v)
		}
	}
	return nil
}

// waiting measures the processor time of a rank that waits for another.
func waiting(ctx context.Context, r *rank) error {
	if err := group.Barrier(ctx, r); err != nil {
		return err
	}
	if r.Rank() == 1 {
		time.Sleep(2 * time.Second)
	}
	began, before := time.Now(), processorTime()
	if err := group.Barrier(ctx, r); err != nil {
		return err
	}
	waited, used := time.Since(began), processorTime()-before
	if r.Rank() == 0 {
		r.report("used %v of %v", used, waited)
		if used > waited/5 {
			return fmt.Errorf("a rank that waited %v used the processor for %v of it", waited, used)
		}
	}
	return nil
}

func processorTime() time.Duration {
	var usage syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// alone is a world of one rank.
func alone(ctx context.Context, r *rank) error {
	if r.Size() != 1 || r.Rank() != 0 {
		return fmt.Errorf("rank %d of %d, want rank 0 of 1", r.Rank(), r.Size())
	}
	if _, err := mpi.World(); err == nil || !strings.Contains(err.Error(), "called before") {
		return fmt.Errorf("a second World gives the error %v", err)
	}
	if err := r.Close(); err != nil {
		return err
	}
	if err := group.Barrier(ctx, r); err == nil || !strings.Contains(err.Error(), "closed") {
		return fmt.Errorf("a call after Close gives the error %v", err)
	}
	return nil
}
