package mpi_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gomlx/compute/dtypes/bfloat16"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/internal/systest"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/xla"
)

// conformance is what ranks of every group can do, be they goroutines or processes.
var conformance = map[string]struct {
	ranks []int // as processes; goroutines are as many, and in random calls up to eight
	play  func(context.Context, group.Group) error
}{
	"random":     {[]int{1, 2, 3, 4}, random(100)},
	"plans":      {[]int{4}, byPlans(10)},
	"background": {[]int{4}, background},
	"same bits":  {[]int{3, 4}, sameBits},
	"devices":    {[]int{3}, onDevices},
	"failures":   {[]int{4}, failures},
}

func TestProcesses(t *testing.T) {
	for name, c := range conformance {
		for _, n := range c.ranks {
			t.Run(fmt.Sprint(name, " ", n), func(t *testing.T) { wellOn(t, n, name) })
		}
	}
	t.Run("tcp", func(t *testing.T) { wellOn(t, 3, "random", "--mca", "btl", "self,tcp") })
}

func TestGoroutines(t *testing.T) {
	defer systest.NoLeaks(t)()
	run := func(t *testing.T, n int, play func(context.Context, group.Group) error) {
		if err := group.Run(t.Context(), n, play); err != nil {
			t.Error(err)
		}
	}
	for name, c := range conformance {
		for _, n := range c.ranks {
			t.Run(fmt.Sprint(name, " ", n), func(t *testing.T) {
				if name == "failures" { // whose ranks sleep
					synctest.Test(t, func(t *testing.T) { run(t, n, c.play) })
				} else {
					run(t, n, c.play)
				}
			})
		}
	}
	for n := 1; n <= 8; n++ {
		run(t, n, random(20))
		run(t, n, byPlans(4))
		run(t, n, func(ctx context.Context, g group.Group) error {
			slow, err := group.Slow(g, group.Link{Latency: 20 * time.Microsecond, Bandwidth: 1e9})
			if err != nil {
				return err
			}
			return random(5)(ctx, slow)
		})
	}
}

// background splits the group in two ways, and has collectives of both groups and messages in both directions under way
// at once.
func background(ctx context.Context, g group.Group) error {
	half, err := g.Split(ctx, g.Rank()%2, -g.Rank())
	if err != nil {
		return err
	}
	if want := (g.Size() - 1 - g.Rank()) / 2; half.Rank() != want {
		return fmt.Errorf("rank %d is rank %d of its half, want %d: the keys order it from the last to the first",
			g.Rank(), half.Rank(), want)
	}
	none, err := g.Split(ctx, -1, 0)
	if err != nil || none != nil {
		return fmt.Errorf("a negative color gives the group %v and the error %v", none, err)
	}
	peer := g.Rank() ^ 1
	for round := range 20 {
		const n = 50_000
		fill := func(v int) []int64 { return slices.Repeat([]int64{int64(v)}, n) }
		all, some := fill(g.Rank()+round), fill(g.Rank()*round)
		to, from, again := fill(g.Rank()), fill(-1), fill(-1)
		pending := []*group.Pending{
			g.Start(ctx, group.RecvCall(from, peer)), // before its send
			g.Start(ctx, group.AllReduceCall(all, group.Sum)),
			half.Start(ctx, group.AllReduceCall(some, group.Max)),
			g.Start(ctx, group.SendCall(to, peer)),
			half.Start(ctx, group.BarrierCall()),
			g.Start(ctx, group.RecvCall(again, peer)),
		}
		if err := group.AllReduce(ctx, g, all, group.Sum); err != nil { // of the sums
			return err
		}
		pending = append(pending, g.Start(ctx, group.SendCall(fill(-peer), peer)))
		if round%2 == 1 {
			slices.Reverse(pending)
		}
		if err := group.WaitAll(pending...); err != nil {
			return err
		}
		top := g.Size() - 1 // the largest rank of this half
		if (top-g.Rank())%2 != 0 {
			top--
		}
		got := []int64{all[n-1], some[n-1], from[n-1], again[n-1]}
		sums := g.Size() * (g.Size()*(g.Size()-1)/2 + g.Size()*round)
		if want := []int64{int64(sums), int64(top * round), int64(peer), int64(-g.Rank())}; !slices.Equal(got, want) {
			return fmt.Errorf("round %d: rank %d has %v, want %v", round, g.Rank(), got, want)
		}
	}
	var dump strings.Builder
	if err := g.Dump(&dump); err != nil {
		return err
	}
	for _, want := range []string{
		fmt.Sprintf("rank %d: ", g.Rank()), "all-reduce #42 (sum of 50000 int64)", "barrier #40 of split #1 color ",
		fmt.Sprintf("send #40 (50000 int64 to rank %d)", peer),
	} {
		if !strings.Contains(dump.String(), want) {
			return fmt.Errorf("the dump has no %q:\n%s", want, dump.String())
		}
	}
	return nil
}

// sameBits reduces numbers whose sum depends on the order, and compares the ranks' results.
func sameBits(ctx context.Context, g group.Group) error {
	rng := rand.New(rand.NewPCG(3, uint64(g.Rank())))
	for _, n := range []int{1, 2, 5, 100, 3000, 100_000, 1 << 20} {
		wide, narrow := make([]float32, n), make([]bfloat16.BFloat16, n)
		for i := range n {
			wide[i] = float32(rng.NormFloat64())
			narrow[i] = bfloat16.FromFloat32(wide[i])
		}
		err := errors.Join(group.AllReduce(ctx, g, wide, group.Sum), group.AllReduce(ctx, g, narrow, group.Mean))
		if err != nil {
			return err
		}
		firstWide, firstNarrow := slices.Clone(wide), slices.Clone(narrow)
		err = errors.Join(group.Broadcast(ctx, g, firstWide, 0), group.Broadcast(ctx, g, firstNarrow, 0))
		if err != nil {
			return err
		}
		if !slices.Equal(wide, firstWide) || !slices.Equal(narrow, firstNarrow) {
			return fmt.Errorf("of %d numbers, rank %d gets another sum than rank 0", n, g.Rank())
		}
	}
	return nil
}

// onDevices has each rank compute on a device of its own, the ranks reduce what lies in the devices' memory where it
// is, and the devices go on from there.
func onDevices(ctx context.Context, g group.Group) error {
	backend, err := xla.Open(xla.Devices(1), xla.Plugin("cpu"))
	if err != nil {
		return err
	}
	defer backend.Close()
	mesh, err := backend.Mesh(xla.Axis("here", 1))
	if err != nil {
		return err
	}
	double, err := xla.Compile(mesh, func(x *graph.Node) *graph.Node { return graph.MulScalar(x, 2) },
		xla.In(xla.Replicated()).Gives(xla.Replicated()))
	if err != nil {
		return err
	}
	defer double.Close()
	values := make([]float32, 100_000)
	for i := range values {
		values[i] = float32(g.Rank() + 1 + i%100)
	}
	var input any = values
	for range 2 {
		out, err := double.Call(input)
		if err != nil {
			return err
		}
		memory, err := xla.View[float32](out[0].Shards()[0])
		if err != nil {
			return err
		}
		if err := group.AllReduce(ctx, g, memory, group.Sum); err != nil {
			return err
		}
		copy(values, memory)
		input = out[0]
	}
	n := g.Size()
	for i, got := range values { // twice doubled, once summed, and then n equal summands
		if want := float32(2 * 2 * n * (n*(n+1)/2 + n*(i%100))); got != want {
			return fmt.Errorf("element %d is %g, want %g", i, got, want)
		}
	}
	return nil
}
