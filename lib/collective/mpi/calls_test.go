package mpi_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/gomlx/compute/dtypes/bfloat16"
	"github.com/gomlx/compute/dtypes/float16"

	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/collective/plan"
)

// random makes calls of random kinds, reductions, roots and lengths, n of each type, and compares each with a plain
// computation from the inputs of all ranks. Some are done, and some started and waited for later.
func random(n int) func(context.Context, group.Group) error {
	return func(ctx context.Context, g group.Group) error {
		rng := rand.New(rand.NewPCG(2, uint64(g.Size()))) // the same on every rank
		var checks []func() error
		for range n {
			for _, play := range []func(context.Context, group.Group, *rand.Rand) func() error{
				randomCall(func(x float64) float32 { return float32(x) }),
				randomCall(func(x float64) float64 { return x }),
				randomCall(func(x float64) bfloat16.BFloat16 { return bfloat16.FromFloat32(float32(x)) }),
				randomCall(func(x float64) float16.Float16 { return float16.FromFloat32(float32(x)) }),
				randomCall(func(x float64) int32 { return int32(x) }),
				randomCall(func(x float64) int64 { return int64(x) }),
				randomCall(func(x float64) uint8 { return uint8(int(x)) }), // 256 becomes 0
			} {
				checks = append(checks, play(ctx, g, rng))
			}
			if rng.IntN(2) == 0 {
				if err := firstError(checks); err != nil {
					return err
				}
				checks = nil
			}
		}
		return firstError(checks)
	}
}

func firstError(checks []func() error) error {
	for _, check := range checks {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// byPlans makes n random calls of each type on a view by each algorithm.
func byPlans(n int) func(context.Context, group.Group) error {
	return func(ctx context.Context, g group.Group) error {
		for _, algorithm := range plan.Algorithms(plan.AllReduce) {
			view, err := group.ByPlan(g, algorithm)
			if err != nil {
				continue // it has no all-gather or reduce-scatter
			}
			if err := random(n)(ctx, view); err != nil {
				return fmt.Errorf("%v: %w", algorithm, err)
			}
		}
		return nil
	}
}

// operation is a call as all ranks know it.
type operation struct {
	kind    group.Kind
	op      group.ReduceOp
	root    int
	length  int // of a buffer, or of one rank's part of it
	inPlace bool
	counts  [][]int // of an all-to-all: the elements of each rank for each
	seed    uint64
}

// input is a rank's input: small numbers, whose sums and products every type has exactly, in any order.
func (o operation) input(rank int) []float64 {
	rng, length := rand.New(rand.NewPCG(o.seed, uint64(rank))), o.length
	switch o.kind {
	case group.KindScatter, group.KindReduceScatter:
		length *= len(o.counts)
	case group.KindAllToAll:
		length = sum(o.counts[rank])
	case group.KindBarrier:
		length = 0
	}
	data := make([]float64, length)
	for i := range data {
		data[i] = float64(1 + rng.IntN(2))
		if o.op != group.Product {
			data[i] *= float64(1 + rng.IntN(3))
		}
	}
	return data
}

// want is a rank's result.
func (o operation) want(rank int) (all []float64) {
	ranks := len(o.counts)
	part := func(x []float64) []float64 { return x[rank*o.length:][:o.length] }
	switch o.kind {
	case group.KindSend: // to the next rank
		return o.input((rank + ranks - 1) % ranks)
	case group.KindBroadcast:
		return o.input(o.root)
	case group.KindReduce:
		if rank == o.root {
			return o.reduced()
		}
		return o.input(rank)
	case group.KindAllReduce:
		return o.reduced()
	case group.KindGather, group.KindAllGather:
		for from := range ranks {
			if rank == o.root || o.kind == group.KindAllGather {
				all = append(all, o.input(from)...)
			}
		}
	case group.KindScatter:
		return part(o.input(o.root))
	case group.KindReduceScatter:
		return part(o.reduced())
	case group.KindAllToAll:
		for from, counts := range o.counts {
			all = append(all, o.input(from)[sum(counts[:rank]):][:counts[rank]]...)
		}
	}
	return all
}

func (o operation) reduced() []float64 {
	x := o.input(0)
	for rank := 1; rank < len(o.counts); rank++ {
		for i, y := range o.input(rank) {
			switch o.op {
			case group.Sum, group.Mean:
				x[i] += y
			case group.Product:
				x[i] *= y
			case group.Max:
				x[i] = max(x[i], y)
			case group.Min:
				x[i] = min(x[i], y)
			}
		}
	}
	if o.op == group.Mean {
		for i := range x {
			x[i] /= float64(len(o.counts))
		}
	}
	return x
}

func sum(counts []int) (total int) {
	for _, n := range counts {
		total += n
	}
	return total
}

// starter is a group that starts calls instead of making them.
type starter struct {
	group.Group
	started *group.Pending
}

func (s *starter) Do(ctx context.Context, call group.Call) error {
	s.started = s.Group.Start(ctx, call)
	return nil
}

// randomCall returns a function that makes a call of one type, and returns one that checks its result.
func randomCall[T group.Element](of func(float64) T) func(context.Context, group.Group, *rand.Rand) func() error {
	return func(ctx context.Context, g group.Group, rng *rand.Rand) func() error {
		lengths := []int{0, 1, 2, 3, 7, 64, 1000, 4097, 9001}
		size, me := g.Size(), g.Rank()
		o := operation{kind: group.Kind(rng.IntN(int(group.KindSplit))), op: group.ReduceOp(rng.IntN(5)),
			root: rng.IntN(size), length: lengths[rng.IntN(len(lengths))], inPlace: rng.IntN(2) == 0,
			seed: rng.Uint64()}
		if o.kind == group.KindRecv {
			o.kind = group.KindSend
		}
		if t := group.TypeOf[T](); o.op == group.Mean && (t == group.Int32 || t == group.Int64 || t == group.Uint8) {
			o.op = group.Sum
		}
		uneven, received := rng.IntN(2) == 0, 0
		for range size {
			counts := slices.Repeat([]int{o.length}, size)
			for to := range counts {
				if uneven {
					counts[to] = rng.IntN(o.length + 1)
				}
			}
			o.counts, received = append(o.counts, counts), received+counts[me]
		}
		convert := func(numbers []float64) []T {
			out := make([]T, len(numbers))
			for i, x := range numbers {
				out[i] = of(x)
			}
			return out
		}
		in, want := convert(o.input(me)), convert(o.want(me))
		out, after := make([]T, len(want)), slices.Clone(in)
		part := me * o.length
		switch o.kind {
		case group.KindBroadcast, group.KindReduce, group.KindAllReduce:
			out, after = in, want
		case group.KindGather, group.KindAllGather:
			if o.inPlace && len(out) > 0 {
				copy(out[part:], in)
				in = out[part:][:o.length]
			}
		case group.KindScatter, group.KindReduceScatter:
			if o.kind == group.KindScatter && me != o.root {
				in, after = nil, nil
			} else if o.inPlace {
				out = in[part:][:o.length]
				copy(after[part:], want)
			}
		}
		s := &starter{Group: g}
		to := g
		if rng.IntN(2) == 0 {
			to = s
		}
		var err error
		switch o.kind {
		case group.KindSend:
			if size == 1 {
				copy(out, in)
				break
			}
			arrives := g.Start(ctx, group.RecvCall(out, (me+size-1)%size))
			err = errors.Join(group.Send(ctx, to, in, (me+1)%size), arrives.Wait())
		case group.KindBroadcast:
			err = group.Broadcast(ctx, to, in, o.root)
		case group.KindReduce:
			err = group.Reduce(ctx, to, in, o.op, o.root)
		case group.KindAllReduce:
			err = group.AllReduce(ctx, to, in, o.op)
		case group.KindGather:
			err = group.Gather(ctx, to, in, out, o.root)
		case group.KindAllGather:
			err = group.AllGather(ctx, to, in, out)
		case group.KindScatter:
			err = group.Scatter(ctx, to, in, out, o.root)
		case group.KindReduceScatter:
			err = group.ReduceScatter(ctx, to, in, out, o.op)
		case group.KindAllToAll:
			if uneven {
				outCounts := make([]int, size)
				for from := range size {
					outCounts[from] = o.counts[from][me]
				}
				err = group.AllToAllV(ctx, to, in, out, o.counts[me], outCounts)
			} else {
				err = group.AllToAll(ctx, to, in, out)
			}
		case group.KindBarrier:
			err = group.Barrier(ctx, to)
		}
		return func() error {
			if err == nil && s.started != nil {
				err = s.started.Wait()
			}
			if err == nil && (!slices.Equal(out, want) || !slices.Equal(in, after)) {
				err = fmt.Errorf("%v of %d %v, %v, root %d, in place %v, started %v: rank %d gets %v, want %v", o.kind,
					o.length, group.TypeOf[T](), o.op, o.root, o.inPlace, s.started != nil, me, head(out), head(want))
			}
			return err
		}
	}
}

func head[T any](s []T) []T { return s[:min(len(s), 8)] }
