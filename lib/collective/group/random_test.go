package group

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gomlx/compute/dtypes/bfloat16"
	"github.com/gomlx/compute/dtypes/float16"

	"github.com/shardbook/shardbook/lib/collective/plan"
)

const randomCases = 50_000

// TestRandomCases plays operations, algorithms, numbers of ranks, sizes and types at random against the reference.
func TestRandomCases(t *testing.T) {
	defer noLeaks(t)()
	cases := randomCases
	if raceEnabled {
		cases /= 10
	}
	for i := range cases {
		c := newCase(uint64(i))
		if err := c.play(); err != nil {
			t.Fatalf("case %d, %+v: %v", i, c, err)
		}
	}
}

// randomCase is one operation.
type randomCase struct {
	Seed      uint64
	Kind      Kind
	Type      Type
	Op        ReduceOp
	Ranks     int
	Length    int // of a buffer, or of one rank's part of it
	Root      int
	Started   bool // by Start instead of Do
	InPlace   bool // where that is possible for operations with two buffers
	Uneven    bool // of an all-to-all
	Plan      bool // by a plan
	View      bool // by a view that carries out plans
	Algorithm plan.Algorithm
}

func newCase(seed uint64) randomCase {
	rng := rand.New(rand.NewPCG(seed, 1))
	c := randomCase{
		Seed: seed, Kind: Kind(rng.IntN(int(KindSplit))), Type: Type(rng.IntN(int(Uint8) + 1)),
		Op:    ReduceOp(rng.IntN(int(Min) + 1)),
		Ranks: 1 + rng.IntN(8), Length: rng.IntN(40),
		Started: rng.IntN(4) == 0, InPlace: rng.IntN(2) == 0, Uneven: rng.IntN(2) == 0,
	}
	switch rng.IntN(200) {
	case 0:
		c.Length = rng.IntN(3 * blockBytes / c.Type.Size()) // some blocks
	case 1, 2, 3, 4:
		c.Length = rng.IntN(3 * strip)
	}
	c.Root = rng.IntN(c.Ranks)
	if c.Op == Mean && c.Type >= Int32 {
		c.Op = Sum
	}
	if c.Kind == KindRecv {
		c.Kind = KindSend
	}
	if op, ok := planOps[c.Kind]; ok && rng.IntN(2) == 0 {
		algorithms := plan.Algorithms(op)
		c.Plan, c.Algorithm = true, algorithms[rng.IntN(len(algorithms))]
	}
	return c
}

var planOps = map[Kind]plan.Op{
	KindBroadcast: plan.Broadcast, KindReduce: plan.Reduce, KindAllReduce: plan.AllReduce,
	KindGather: plan.Gather, KindAllGather: plan.AllGather, KindScatter: plan.Scatter,
	KindReduceScatter: plan.ReduceScatter, KindAllToAll: plan.AllToAll,
}

func (c randomCase) play() error {
	switch c.Type {
	case Float32:
		return playAs[float32](c)
	case Float64:
		return playAs[float64](c)
	case BFloat16:
		return playAs[bfloat16.BFloat16](c)
	case Float16:
		return playAs[float16.Float16](c)
	case Int32:
		return playAs[int32](c)
	case Int64:
		return playAs[int64](c)
	}
	return playAs[uint8](c)
}

func playAs[T Element](c randomCase) error {
	if c.Plan {
		return playPlan[T](c)
	}
	rng := rand.New(rand.NewPCG(c.Seed, 2))
	ins, outs, counts := buffers[T](rng, c)
	want := reference(c.Kind, c.Op, c.Root, copies(ins), outs, counts)
	unchanged := copies(ins)
	counted := make([]Counted, c.Ranks)
	err := Run(context.Background(), c.Ranks, func(ctx context.Context, g Group) (err error) {
		r := g.Rank()
		if c.View {
			counted[r] = Count(g)
			if g, err = ByPlan(counted[r], c.Algorithm); err != nil {
				return err
			}
		}
		call := c.call(r, counts, callFor(c, ins[r], outs[r]))
		if c.Kind == KindSend {
			return playSend(ctx, g, ins[r], outs[r])
		}
		if c.Started {
			return g.Start(ctx, call).Wait()
		}
		return g.Do(ctx, call)
	}, Timeout(time.Minute))
	if err == nil && c.View {
		err = c.checkTraffic(counted)
	}
	if err == nil {
		err = same(outs, want)
	}
	if err != nil || c.InPlace || outs[0] == nil || inPlaceOnly(c.Kind) {
		return err
	}
	if err := same(ins, unchanged); err != nil {
		return fmt.Errorf("the input changed: %w", err)
	}
	return nil
}

func inPlaceOnly(kind Kind) bool {
	return kind == KindBroadcast || kind == KindReduce || kind == KindAllReduce
}

// buffers makes the ranks' buffers, and the counts of an all-to-all.
func buffers[T Element](rng *rand.Rand, c randomCase) (ins, outs [][]T, counts [][]int) {
	n := c.Ranks
	ins, outs, counts = make([][]T, n), make([][]T, n), make([][]int, n)
	received := make([]int, n)
	for r := range n {
		counts[r] = make([]int, n)
		for to := range n {
			counts[r][to] = c.Length
			if c.Uneven && c.Kind == KindAllToAll {
				counts[r][to] = rng.IntN(c.Length + 1)
			}
			received[to] += counts[r][to]
		}
	}
	for r := range n {
		part, whole := c.Length, n*c.Length
		switch c.Kind {
		case KindBroadcast, KindReduce, KindAllReduce:
			ins[r] = randomValues[T](rng, part)
			outs[r] = ins[r]
		case KindSend:
			ins[r], outs[r] = randomValues[T](rng, part), make([]T, part)
		case KindGather, KindAllGather:
			ins[r], outs[r] = randomValues[T](rng, part), make([]T, whole)
			if c.InPlace && (c.Kind == KindAllGather || r == c.Root) {
				copy(outs[r][r*part:], ins[r])
				ins[r] = outs[r][r*part : (r+1)*part]
			}
		case KindScatter, KindReduceScatter:
			ins[r], outs[r] = randomValues[T](rng, whole), make([]T, part)
			if c.InPlace && (c.Kind == KindReduceScatter || r == c.Root) {
				outs[r] = ins[r][r*part : (r+1)*part]
			}
		case KindAllToAll:
			ins[r], outs[r] = randomValues[T](rng, sum(counts[r])), make([]T, received[r])
		}
	}
	for r := range n {
		for i := range ins[r] {
			if c.View { // exact in any order of additions
				ins[r][i] = fromNumber[T](float64(rng.IntN(6)))
			}
		}
	}
	return ins, outs, counts
}

func copies[T Element](of [][]T) [][]T {
	result := make([][]T, len(of))
	for r := range of {
		result[r] = append([]T(nil), of[r]...)
	}
	return result
}

func callFor[T Element](c randomCase, in, out []T) Call {
	switch c.Kind {
	case KindBroadcast:
		return BroadcastCall(in, c.Root)
	case KindReduce:
		return reduceCall(in, c.Op, c.Root)
	case KindAllReduce:
		return AllReduceCall(in, c.Op)
	case KindGather:
		return gatherCall(in, out, c.Root)
	case KindAllGather:
		return allGatherCall(in, out)
	case KindScatter:
		return scatterCall(in, out, c.Root)
	case KindReduceScatter:
		return reduceScatterCall(in, out, c.Op)
	case KindAllToAll:
		return allToAllCall(in, out)
	}
	return BarrierCall()
}

// call is a call with the counts of an uneven all-to-all.
func (c randomCase) call(rank int, counts [][]int, call Call) Call {
	if c.Kind == KindAllToAll && c.Uneven {
		outCounts := make([]int, c.Ranks)
		for from := range outCounts {
			outCounts[from] = counts[from][rank]
		}
		call.InCounts, call.OutCounts = counts[rank], outCounts
	}
	return call
}

// playSend sends to the next rank and receives from the one before.
func playSend[T Element](ctx context.Context, g Group, in, out []T) error {
	n := g.Size()
	if n == 1 {
		copy(out, in)
		return nil
	}
	sent := g.Start(ctx, SendCall(in, (g.Rank()+1)%n))
	if err := Recv(ctx, g, out, (g.Rank()+n-1)%n); err != nil {
		return err
	}
	return sent.Wait()
}

// playPlan runs a plan on whole numbers, of which sums and products are the same in
// any order, with any length of the whole buffer.
func playPlan[T Element](c randomCase) error {
	rng := rand.New(rand.NewPCG(c.Seed, 2))
	op := c.Op
	if op == Product || op == Mean && c.Ranks&(c.Ranks-1) != 0 {
		op = Sum // products of many ranks do not fit in 16 bits, and thirds in none
	}
	var options []plan.Option
	rooted := c.Kind == KindBroadcast || c.Kind == KindReduce || c.Kind == KindGather || c.Kind == KindScatter
	if rooted {
		options = append(options, plan.Root(c.Root))
	}
	p, err := plan.New(planOps[c.Kind], c.Algorithm, c.Ranks, options...)
	if err != nil {
		return err
	}
	n, length := c.Ranks, c.Length
	if c.Kind == KindAllToAll {
		length -= length % p.Chunks
	}
	begin := func(r int) int { b, _ := plan.Cut(length, p.Chunks, r*p.Chunks/n); return b }
	part := func(buf []T, r int) []T { return buf[begin(r):min(len(buf), beginOrEnd(begin, r+1, n, length))] }
	bufs := make([][]T, n)
	for r := range n {
		bufs[r] = make([]T, length)
		for i := range bufs[r] {
			bufs[r][i] = fromNumber[T](float64(rng.IntN(5)))
		}
	}
	before := copies(bufs)
	views := make([]*counted, n)
	err = Run(context.Background(), n, func(ctx context.Context, g Group) error {
		views[g.Rank()] = Count(g).(*counted)
		return RunPlan(ctx, views[g.Rank()], p, bufs[g.Rank()], op)
	}, Timeout(time.Minute))
	if err != nil {
		return err
	}
	if err := countedAsPlanned(p, views, length, c.Type.Size()); err != nil {
		return err
	}
	got, want := make([][]T, n), make([][]T, n)
	for r := range n {
		got[r], want[r] = bufs[r], before[r]
		switch c.Kind {
		case KindBroadcast:
			want[r] = before[c.Root]
		case KindReduce, KindAllReduce, KindReduceScatter:
			if c.Kind == KindReduce && r != c.Root {
				break
			}
			want[r] = make([]T, length)
			for i := range want[r] {
				var column []T
				for q := range n {
					column = append(column, before[q][i])
				}
				want[r][i] = reduceColumn(op, column)
			}
			if c.Kind == KindReduceScatter {
				got[r], want[r] = part(got[r], r), part(want[r], r)
			}
		case KindGather, KindAllGather:
			if c.Kind == KindGather && r != c.Root {
				got[r], want[r] = nil, nil
				break
			}
			want[r] = nil
			for q := range n {
				want[r] = append(want[r], part(before[q], q)...)
			}
		case KindScatter:
			got[r], want[r] = part(got[r], r), part(before[c.Root], r)
		case KindAllToAll:
			want[r] = nil
			for q := range n {
				want[r] = append(want[r], part(before[q], r)...)
			}
		}
	}
	return same(got, want)
}

// beginOrEnd is where part r begins, or the end after the last.
func beginOrEnd(begin func(int) int, r, n, length int) int {
	if r == n {
		return length
	}
	return begin(r)
}

// countedAsPlanned compares what was sent with what the plan says.
func countedAsPlanned(p *plan.Plan, counted []*counted, elements, size int) error {
	want, err := p.Count(elements, size)
	if err != nil {
		return err
	}
	for from, c := range counted {
		for to, sent := range c.sent {
			if link := want.Links[from][to]; sent != link {
				return fmt.Errorf("rank %d sent %+v to rank %d, and the plan says %+v", from, sent, to, link)
			}
		}
	}
	return nil
}
