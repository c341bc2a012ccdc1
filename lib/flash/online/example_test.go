package online_test

import (
	"fmt"
	"log"
	"math"

	"github.com/shardbook/shardbook/lib/flash/online"
)

// Loads and stores per element of each softmax.
func Example() {
	x := make([]float32, 1000)
	for _, c := range []struct {
		name    string
		softmax func([]float32) ([]float32, online.Traffic)
	}{
		{"unsafe", online.Unsafe[float32]}, {"three passes", online.ThreePass[float32]},
		{"online", online.Online[float32]}, {"resident", online.Resident[float32]},
	} {
		_, moved := c.softmax(x)
		fmt.Printf("%-12s %d + %d\n", c.name, moved.Loads/1000, moved.Stores/1000)
	}
	// Output:
	// unsafe       2 + 1
	// three passes 3 + 1
	// online       2 + 1
	// resident     1 + 1
}

// e^100 overflows in float32, and ∞/∞ is NaN. After subtracting the maximum, no exponent is above 0.
func ExampleUnsafe() {
	x := []float32{100, 101, 0}
	bad, _ := online.Unsafe(x)
	good, _ := online.ThreePass(x)
	fmt.Println(bad)
	fmt.Printf("%.3f\n", good)
	// Output:
	// [NaN NaN 0]
	// [0.269 0.731 0.000]
}

// When the maximum grows, the sum so far is rescaled.
func ExampleTrace() {
	for i, s := range online.Trace([]float64{1, 3, 2, 5, 5}) {
		fmt.Printf("%d: m = %v, d = %.4f\n", i+1, s.M, s.D)
	}
	// Output:
	// 1: m = 1, d = 1.0000
	// 2: m = 3, d = 1.1353
	// 3: m = 3, d = 1.5032
	// 4: m = 5, d = 1.2034
	// 5: m = 5, d = 2.2034
}

// Two devices have half of the keys each. They exchange m, d and o.
func ExamplePartial_Merge() {
	one := must(online.Attend([]float64{0, math.Log(2)}, []float64{7, 0, 0, 7}, 2))
	other := must(online.Attend([]float64{math.Log(4)}, []float64{7, 7}, 2))
	both := must(one.Merge(other))
	fmt.Printf("%.0f %.4f\n", both.Output(), both.State.LogSumExp())
	// Output: [5 6] 1.9459
}

// The traffic and the memory of each function, for 512 tokens.
func ExampleQueriesOuter() {
	const n, d = 512, 16
	h := online.Head[float32]{
		Q: make([]float32, n*d), K: make([]float32, n*d), V: make([]float32, n*d), D: d, E: d, Scale: 0.25,
	}
	for i := range h.Q {
		h.Q[i], h.K[i], h.V[i] = float32(i%7), float32(i%5), float32(i%3)
	}
	report := func(step string, f online.Forward[float32], err error) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%-16s moves %7d, needs %6d, saves %6d\n", step, f.Traffic.Moved(), f.Traffic.Fast,
			len(f.P)+len(f.LSE))
	}
	f, err := online.ThreeStep(h)
	report("three steps", f, err)
	f, err = online.OneLoop(h)
	report("one loop", f, err)

	const fast = 4096 // elements
	tiles := must(online.TilesKeysOuter(fast, d, d))
	f, err = online.KeysOuter(h, tiles)
	report("keys outer", f, err)
	tiles = must(online.TilesQueriesOuter(fast, d, d))
	f, err = online.QueriesOuter(h, tiles)
	report("queries outer", f, err)
	// Output:
	// three steps      moves 1081344, needs 278528, saves 262144
	// one loop         moves 8405504, needs     64, saves    512
	// keys outer       moves  213504, needs   4096, saves    512
	// queries outer    moves  147968, needs   4062, saves    512
}
