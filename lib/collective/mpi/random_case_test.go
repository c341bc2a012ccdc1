//go:build mpi

package mpi_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/gomlx/compute/dtypes/bfloat16"
	"github.com/gomlx/compute/dtypes/float16"

	"github.com/shardbook/shardbook/lib/collective/group"
)

func init() {
	cases["random"] = random(200)
	cases["random, fewer"] = random(60)
}

// random makes calls of random kinds, reductions, roots and lengths, n of each
// type, and compares each with a plain computation from the inputs of all ranks.
func random(calls int) func(context.Context, *rank) error {
	return func(ctx context.Context, r *rank) error { return randomCalls(ctx, r, calls) }
}

func randomCalls(ctx context.Context, r *rank, calls int) error {
	rng := rand.New(rand.NewPCG(2, uint64(r.Size()))) // the same on every rank
	for range calls {
		err := firstError(randomCall(ctx, r, rng, func(n int) float32 { return float32(n) }),
			randomCall(ctx, r, rng, func(n int) float64 { return float64(n) }),
			randomCall(ctx, r, rng, func(n int) bfloat16.BFloat16 { return bfloat16.FromFloat32(float32(n)) }),
			randomCall(ctx, r, rng, func(n int) float16.Float16 { return float16.FromFloat32(float32(n)) }),
			randomCall(ctx, r, rng, func(n int) int32 { return int32(n) }),
			randomCall(ctx, r, rng, func(n int) int64 { return int64(n) }),
			randomCall(ctx, r, rng, func(n int) uint8 { return uint8(n) }))
		if err != nil {
			return err
		}
	}
	return nil
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// randomCall makes a call of one type, of small whole numbers that every type holds
// exactly whatever the order of the reduction.
func randomCall[T group.Element](ctx context.Context, r *rank, rng *rand.Rand, of func(int) T) error {
	lengths := []int{0, 1, 2, 3, 7, 64, 1000, 4097, 30011}
	size, me := r.Size(), r.Rank()
	n, root := lengths[rng.IntN(len(lengths))], rng.IntN(size)
	op := group.ReduceOp(rng.IntN(5))
	if t := group.TypeOf[T](); op == group.Mean && (t == group.Int32 || t == group.Int64 || t == group.Uint8) {
		op = group.Sum
	}
	kind := group.Kind(rng.IntN(int(group.KindSplit)))
	inPlace := rng.IntN(2) == 0
	seed := rng.Uint64()
	data := func(rank, n int) []int {
		rng, data := rand.New(rand.NewPCG(seed, uint64(rank))), make([]int, n)
		for i := range data {
			data[i] = 1 + rng.IntN(4)
		}
		return data
	}
	convert := func(ints []int) []T {
		out := make([]T, len(ints))
		for i, v := range ints {
			out[i] = of(v)
		}
		return out
	}
	// all is what every rank has, when each has n numbers.
	all := func(n int) [][]int {
		all := make([][]int, size)
		for rank := range all {
			all[rank] = data(rank, n)
		}
		return all
	}
	is := func(got, want []T, err error) error {
		if err != nil {
			return err
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("%v of %d %v, %v, root %d, in place %v: rank %d gets %v, want %v", kind, n,
				group.TypeOf[T](), op, root, inPlace, me, head(got), head(want))
		}
		return nil
	}
	switch kind {
	case group.KindSend, group.KindRecv: // to the next rank, from the one before
		if size == 1 {
			return nil
		}
		got := make([]T, n)
		p := r.Start(ctx, group.SendCall(convert(data(me, n)), (me+1)%size))
		before := (me + size - 1) % size
		err := group.Recv(ctx, r, got, before)
		return is(got, convert(data(before, n)), firstError(err, p.Wait()))
	case group.KindBroadcast:
		buf := convert(data(me, n))
		return is(buf, convert(data(root, n)), group.Broadcast(ctx, r, buf, root))
	case group.KindReduce:
		buf := convert(data(me, n))
		want := slices.Clone(buf)
		if me == root {
			want = reduce(all(n), op, of)
		}
		return is(buf, want, group.Reduce(ctx, r, buf, op, root))
	case group.KindAllReduce:
		buf := convert(data(me, n))
		return is(buf, reduce(all(n), op, of), group.AllReduce(ctx, r, buf, op))
	case group.KindGather, group.KindAllGather:
		in, out := convert(data(me, n)), make([]T, n*size)
		if inPlace {
			in = out[me*n:][:copy(out[me*n:], in)]
		}
		want := convert(slices.Concat(all(n)...))
		if kind == group.KindAllGather {
			return is(out, want, group.AllGather(ctx, r, in, out))
		}
		if me != root {
			want = nil
			if !inPlace {
				out = nil
			}
		}
		err := group.Gather(ctx, r, in, out, root)
		if me != root {
			out = nil
		}
		return is(out, want, err)
	case group.KindScatter:
		in := convert(data(root, n*size))
		want, out := slices.Clone(in[me*n:][:n]), make([]T, n)
		if inPlace {
			out = in[me*n:][:n]
		}
		if me != root {
			in, out = nil, make([]T, n)
		}
		return is(out, want, group.Scatter(ctx, r, in, out, root))
	case group.KindReduceScatter:
		in, out := convert(data(me, n*size)), make([]T, n)
		if inPlace {
			out = in[me*n:][:n]
		}
		rest := slices.Clone(in)
		err := group.ReduceScatter(ctx, r, in, out, op)
		want := reduce(all(n*size), op, of)[me*n:][:n]
		if inPlace {
			copy(rest[me*n:], want)
		}
		return firstError(is(out, want, err), is(in, rest, err))
	case group.KindAllToAll:
		// counts[a][b] is what rank a has for rank b.
		counts := make([][]int, size)
		for a := range counts {
			for range size {
				count := n
				if inPlace { // here: uneven
					count = rng.IntN(n + 1)
				}
				counts[a] = append(counts[a], count)
			}
		}
		var want []int
		var outCounts []int
		for from := range size {
			at := sum(counts[from][:me])
			want = append(want, data(from, sum(counts[from]))[at:][:counts[from][me]]...)
			outCounts = append(outCounts, counts[from][me])
		}
		in, out := convert(data(me, sum(counts[me]))), make([]T, len(want))
		if inPlace {
			return is(out, convert(want), group.AllToAllV(ctx, r, in, out, counts[me], outCounts))
		}
		return is(out, convert(want), group.AllToAll(ctx, r, in, out))
	}
	return group.Barrier(ctx, r)
}

// reduce is the reduction of the ranks' numbers.
func reduce[T group.Element](all [][]int, op group.ReduceOp, of func(int) T) []T {
	out := make([]T, len(all[0]))
	for i := range out {
		v := all[0][i]
		for _, other := range all[1:] {
			switch op {
			case group.Sum, group.Mean:
				v += other[i]
			case group.Product:
				v *= other[i]
			case group.Max:
				v = max(v, other[i])
			case group.Min:
				v = min(v, other[i])
			}
		}
		out[i] = of(v)
		if op == group.Mean {
			out[i] = quotient(of, v, len(all))
		}
	}
	return out
}

// quotient is a/b in T.
func quotient[T group.Element](_ func(int) T, a, b int) T {
	var q any
	switch any(*new(T)).(type) {
	case float64:
		q = float64(a) / float64(b)
	case bfloat16.BFloat16:
		q = bfloat16.FromFloat32(float32(a) / float32(b))
	case float16.Float16:
		q = float16.FromFloat32(float32(a) / float32(b))
	default:
		q = float32(a) / float32(b)
	}
	return q.(T)
}

func sum(counts []int) int {
	total := 0
	for _, n := range counts {
		total += n
	}
	return total
}

func head[T any](s []T) []T { return s[:min(len(s), 8)] }
