package plan_test

import (
	"fmt"
	"os"
	"time"

	"github.com/shardbook/shardbook/lib/collective/plan"
	"github.com/shardbook/shardbook/lib/notebook"
)

// The ring all-reduce of three ranks: what each does, that it is right, and what it
// holds after every round. a, b and c are the ranks' contributions.
func Example() {
	p := notebook.Must(plan.New(plan.AllReduce, plan.Ring, 3))
	fmt.Print(p)
	fmt.Println("wrong:", p.Prove())
	notebook.Check(p.Draw(os.Stdout))
	// Output:
	// all-reduce by ring: 3 ranks, root 0, 3 chunks, 4 slots, 4 rounds
	// rank 0
	//   0: send 2 to 1; receive 3[1] from 2; 1 += 3
	//   1: send 1 to 1; receive 3[0] from 2; 0 += 3
	//   2: send 0 to 1; receive 2 from 2
	//   3: send 2 to 1; receive 1 from 2
	// rank 1
	//   0: send 0 to 2; receive 3[2] from 0; 2 += 3
	//   1: send 2 to 2; receive 3[1] from 0; 1 += 3
	//   2: send 1 to 2; receive 0 from 0
	//   3: send 0 to 2; receive 2 from 0
	// rank 2
	//   0: send 1 to 0; receive 3[0] from 1; 0 += 3
	//   1: send 0 to 0; receive 3[2] from 1; 2 += 3
	//   2: send 2 to 0; receive 1 from 1
	//   3: send 1 to 0; receive 0 from 1
	// wrong: <nil>
	// all-reduce by ring, 3 ranks
	// start
	//   rank 0  a0  a1  a2
	//   rank 1  b0  b1  b2
	//   rank 2  c0  c1  c2
	// round 0: 0→1: 2, 1→2: 0, 2→0: 1
	//   rank 0  a0     a1+c1  a2
	//   rank 1  b0     b1     b2+a2
	//   rank 2  c0+b0  c1     c2
	// round 1: 0→1: 1, 1→2: 2, 2→0: 0
	//   rank 0  a0+c0+b0  a1+c1     a2
	//   rank 1  b0        b1+a1+c1  b2+a2
	//   rank 2  c0+b0     c1        c2+b2+a2
	// round 2: 0→1: 0, 1→2: 1, 2→0: 2
	//   rank 0  a0+c0+b0  a1+c1     c2+b2+a2
	//   rank 1  a0+c0+b0  b1+a1+c1  b2+a2
	//   rank 2  c0+b0     b1+a1+c1  c2+b2+a2
	// round 3: 0→1: 2, 1→2: 0, 2→0: 1
	//   rank 0  a0+c0+b0  b1+a1+c1  c2+b2+a2
	//   rank 1  a0+c0+b0  b1+a1+c1  c2+b2+a2
	//   rank 2  a0+c0+b0  b1+a1+c1  c2+b2+a2
}

// What it takes eight ranks to add up a gigabyte, and a kilobyte, by each algorithm,
// over links of 50 GB/s with a latency of 5 µs.
func ExamplePlan_Cost() {
	network := plan.Uniform(plan.Link{Latency: 5 * time.Microsecond, Bandwidth: 50e9})
	for _, algorithm := range plan.Algorithms(plan.AllReduce) {
		p := notebook.Must(plan.New(plan.AllReduce, algorithm, 8))
		traffic := notebook.Must(p.Count(250e6, 4))
		long := notebook.Must(p.Cost(network, 250e6, 4))
		short := notebook.Must(p.Cost(network, 250, 4))
		fmt.Printf("%-19v %2d rounds, rank 0 sends %4.2f GB: %9v; one kilobyte: %v\n", algorithm, traffic.Rounds,
			float64(traffic.Sent[0].Bytes)/1e9, long.Total.Round(time.Microsecond),
			short.Total.Round(10*time.Nanosecond))
	}
	// Output:
	// naive               14 rounds, rank 0 sends 7.00 GB:  280.07ms; one kilobyte: 70.28µs
	// ring                14 rounds, rank 0 sends 1.75 GB:   35.07ms; one kilobyte: 70.04µs
	// one-shot             1 rounds, rank 0 sends 7.00 GB: 140.035ms; one kilobyte: 35.14µs
	// tree                 6 rounds, rank 0 sends 3.00 GB:  120.03ms; one kilobyte: 30.12µs
	// recursive-doubling   3 rounds, rank 0 sends 3.00 GB:  60.015ms; one kilobyte: 15.06µs
	// halving-doubling     6 rounds, rank 0 sends 1.75 GB:   35.03ms; one kilobyte: 30.04µs
	// bidirectional-ring   8 rounds, rank 0 sends 1.75 GB:   35.07ms; one kilobyte: 70.04µs
	// hierarchical         8 rounds, rank 0 sends 1.75 GB:   35.04ms; one kilobyte: 40.04µs
}

// The order in which sums are made differs by algorithm, and so do their last bits.
// Between the ranks of one all-reduce it does not.
func ExamplePlan_Order() {
	for _, algorithm := range plan.Algorithms(plan.AllReduce) {
		p := notebook.Must(plan.New(plan.AllReduce, algorithm, 4))
		order := notebook.Must(p.Order(3, 0))
		same := notebook.Must(p.SameBits())
		fmt.Printf("%-19v %v %v\n", algorithm, order, same)
	}
	// Output:
	// naive               ((a0+b0)+c0)+d0 true
	// ring                a0+(d0+(c0+b0)) true
	// one-shot            ((a0+b0)+c0)+d0 true
	// tree                (a0+b0)+(c0+d0) true
	// recursive-doubling  (d0+c0)+(b0+a0) true
	// halving-doubling    (a0+c0)+(b0+d0) true
	// bidirectional-ring  (a0+(b0+c0))+d0 true
	// hierarchical        (a0+b0)+(c0+d0) true
}

// A bus bandwidth can be compared with what the links can do.
func ExampleBusFactor() {
	const ranks, bytes = 8, 1 << 30
	p := notebook.Must(plan.New(plan.AllReduce, plan.Ring, ranks))
	line := notebook.Must(p.Cost(plan.Uniform(plan.Link{Latency: time.Microsecond, Bandwidth: 100e9}), bytes, 1))
	algorithm := bytes / line.Total.Seconds()
	fmt.Printf("algorithm bandwidth %.1f GB/s, bus bandwidth %.1f GB/s\n",
		algorithm/1e9, algorithm*plan.BusFactor(plan.AllReduce, ranks)/1e9)
	// Output:
	// algorithm bandwidth 57.1 GB/s, bus bandwidth 99.9 GB/s
}
