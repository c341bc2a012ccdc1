package group_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/shardbook/shardbook/lib/collective/group"
)

// onThree runs f on three ranks and prints what each returns, in order.
func onThree(f func(ctx context.Context, g group.Group) ([]float32, error)) {
	results := make([][]float32, 3)
	err := group.Run(context.Background(), 3, func(ctx context.Context, g group.Group) (err error) {
		results[g.Rank()], err = f(ctx, g)
		return err
	})
	if err != nil {
		fmt.Println(err)
	}
	for rank, result := range results {
		fmt.Printf("rank %d: %v\n", rank, result)
	}
}

// five is five times the number of the rank, counted from one.
func five(g group.Group) []float32 {
	buf := make([]float32, 5)
	for i := range buf {
		buf[i] = float32(g.Rank() + 1)
	}
	return buf
}

func ExampleAllReduce() {
	onThree(func(ctx context.Context, g group.Group) ([]float32, error) {
		buf := five(g)
		return buf, group.AllReduce(ctx, g, buf, group.Sum)
	})
	// Output:
	// rank 0: [6 6 6 6 6]
	// rank 1: [6 6 6 6 6]
	// rank 2: [6 6 6 6 6]
}

func ExampleReduceScatter() {
	onThree(func(ctx context.Context, g group.Group) ([]float32, error) {
		var in []float32 // (rank+1)·i to the powers 1, 2 and 3
		for power := 1; power <= 3; power++ {
			for i := 1; i <= 2; i++ {
				x := float32(1)
				for range power {
					x *= float32((g.Rank() + 1) * i)
				}
				in = append(in, x)
			}
		}
		out := make([]float32, 2)
		return out, group.ReduceScatter(ctx, g, in, out, group.Sum)
	})
	// Output:
	// rank 0: [6 12]
	// rank 1: [14 56]
	// rank 2: [36 288]
}

func ExampleAllToAllV() {
	onThree(func(ctx context.Context, g group.Group) ([]float32, error) {
		// Rank r has r elements for rank 0, one for rank 1 and none for rank 2.
		in := five(g)[:g.Rank()+1]
		out := make([]float32, []int{0 + 1 + 2, 3, 0}[g.Rank()])
		from := [][]int{{0, 1, 2}, {1, 1, 1}, {0, 0, 0}}[g.Rank()]
		return out, group.AllToAllV(ctx, g, in, out, []int{g.Rank(), 1, 0}, from)
	})
	// Output:
	// rank 0: [2 3 3]
	// rank 1: [1 2 3]
	// rank 2: []
}

// A call in the background, and a group of two of the three ranks.
func ExampleGroup() {
	onThree(func(ctx context.Context, g group.Group) ([]float32, error) {
		buf := five(g)
		pending := g.Start(ctx, group.AllReduceCall(buf, group.Max))
		// … other work …
		if err := pending.Wait(); err != nil {
			return nil, err
		}
		sub, err := g.Split(ctx, g.Rank()%2, 0) // ranks 0 and 2; rank 1
		if err != nil {
			return nil, err
		}
		return buf, group.AllReduce(ctx, sub, buf, group.Sum)
	})
	// Output:
	// rank 0: [6 6 6 6 6]
	// rank 1: [3 3 3 3 3]
	// rank 2: [6 6 6 6 6]
}

func ExampleRun() {
	err := group.Run(context.Background(), 3, func(ctx context.Context, g group.Group) error {
		buf := make([]float32, 8)
		if g.Rank() == 1 {
			return group.Barrier(ctx, g) // a mistake
		}
		return group.AllReduce(ctx, g, buf, group.Mean)
	})
	fmt.Println(err)
	// Output:
	// rank 0: all-reduce #1: rank 1 called barrier where rank 0 called all-reduce (mean of 8 float32)
	// rank 1: all-reduce #1: rank 1 called barrier where rank 0 called all-reduce (mean of 8 float32)
	// rank 2: all-reduce #1: rank 1 called barrier where rank 0 called all-reduce (mean of 8 float32)
}

func ExampleExchange() {
	err := group.Run(context.Background(), 3, func(ctx context.Context, g group.Group) error {
		told, err := group.Exchange(ctx, g, []byte(strings.Repeat("x", g.Rank())))
		if g.Rank() == 1 {
			fmt.Printf("%q\n", told)
		}
		return err
	})
	fmt.Println(err)
	// Output:
	// ["" "x" "xx"]
	// <nil>
}
