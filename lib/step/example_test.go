package step_test

import (
	"fmt"
	"os"
	"strings"

	"github.com/shardbook/shardbook/lib/notebook"
	"github.com/shardbook/shardbook/lib/step"
)

// plan reads and checks a plan.
func plan(text string) *step.Plan {
	p := notebook.Must(step.Parse(text))
	notebook.Check(p.Check())
	return p
}

// A ZeRO-3 step of three blocks: while a rank computes one block it gathers the parameters of the next. Each rank holds
// a shard of the gradients, and gathers nothing after the update.
func ExamplePlan() {
	p := plan(`
plan zero-3 blocks=3 microbatches=1
axis data size=2 groups=0-1
units 0-2 reduce=data shard=data
ranks 0-1: 0UNSHARD 1UNSHARD 0F0 0RESHARD 2UNSHARD 1F0 1RESHARD 2F0 1UNSHARD 2B0 2RESHARD
	2REDUCE_GRAD 0UNSHARD 1B0 1RESHARD 1REDUCE_GRAD 0B0 0RESHARD 0REDUCE_GRAD U0`)
	fmt.Print(p)
	t := notebook.Must(p.Simulate(step.Costs{Transfer: func(op step.Op) float64 { return 1 }}))
	fmt.Print(t)
	memory := notebook.Must(p.Memory(step.Sizes{Full: []int64{100}, Resident: []int64{50}, Sum: []int64{100},
		Reduced: []int64{50}}))
	fmt.Println("gathered at most:", memory[0].Peak.Gathered)
	// Output:
	// plan zero-3 blocks=3 microbatches=1 every=1 weights=flush
	// axis data size=2 groups=0-1
	// units 0-2 reduce=data shard=data
	// ranks 0-1: 0UNSHARD 1UNSHARD 0F0 0RESHARD 2UNSHARD 1F0 1RESHARD 2F0 1UNSHARD 2B0 2RESHARD
	//     2REDUCE_GRAD 0UNSHARD 1B0 1RESHARD 1REDUCE_GRAD 0B0 0RESHARD 0REDUCE_GRAD U0
	// rank 0 │·   A0  B0  C0  C0b──── B0b──── A0b──── ·
	//   data │0g  1g  2g  ·   1g  ·   2x  0g  1x  ·   0x
	// rank 1 │·   A0  B0  C0  C0b──── B0b──── A0b──── ·
	//   data │0g  1g  2g  ·   1g  ·   2x  0g  1x  ·   0x
	// A0 forward, C0b backward, 0g gather, 2x reduce, A, B, … a rank's blocks, · idle; a column is 1
	// gathered at most: 200
}

// A schedule by hand, in which rank 0 goes back before it has gone forward with all that rank 1 asks for first.
func ExamplePlan_Check() {
	p := notebook.Must(step.Parse(`
schedule by-hand
rank 0: 0F0 0B0 0F1 0B1 0U1
rank 1: 1F0 1F1 1B0 1B1 1U1`))
	fmt.Println(strings.ReplaceAll(p.Check().Error(), "; ", ";\n"))
	// Output:
	// step: deadlock: rank 0 is at 0B0 and waits for 1SEND_B0 of rank 1;
	// rank 1 is at 1F1 and waits for 0SEND_F1 of rank 0;
	// change the order of one of them
}

// What PyTorch's 1F1B writes, in which empty cells are idle.
func ExampleReadCSV() {
	p := notebook.Must(step.ReadCSV(strings.NewReader("0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1,\n")))
	p.Name = "from-pytorch"
	notebook.Check(p.WriteCSV(os.Stdout))
	// Output:
	// # schedule from-pytorch stages=2 microbatches=2 every=2 weights=flush
	// 0F0,0F1,0B0,0B1,0U1
	// 1F0,1B0,1F1,1B1,1U1
}

func ExamplePlan_WithMessages() {
	p := notebook.Must(plan("schedule 1f1b\nrank 0: 0F0 0F1 0B0 0B1 0U1\nrank 1: 1F0 1B0 1F1 1B1 1U1").WithMessages())
	fmt.Print(p)
	// Output:
	// schedule 1f1b stages=2 microbatches=2 every=2 weights=flush
	// rank 0: 0F0 0SEND_F0 0RECV_B0 0F1 0SEND_F1 0RECV_B1 WAIT_0SEND_F0 0B0 WAIT_0SEND_F1 0B1 0U1
	// rank 1: 1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 1SEND_B1 1U1
}

// PipeDream updates after each micro-batch, and saves the weights of a forward pass for its backward pass.
func ExamplePlan_Versions() {
	p := plan("schedule pipedream every=1 weights=stash\nrank 0: 0F0 0F1 0B0 0U0 0F2 0B1 0U1 0B2 0U2\nrank 1: 1F0 " +
		"1B0 1U0 1F1 1B1 1U1 1F2 1B2 1U2")
	versions := notebook.Must(p.Versions())
	for r, list := range p.Ranks {
		fmt.Printf("rank %d:", r)
		for i, op := range list {
			fmt.Printf(" %v@%d", p.Text(op), versions[r][i])
		}
		fmt.Println()
	}
	// Output:
	// rank 0: 0F0@0 0F1@0 0B0@0 0U0@1 0F2@1 0B1@0 0U1@2 0B2@1 0U2@3
	// rank 1: 1F0@0 1B0@0 1U0@1 1F1@1 1B1@1 1U1@2 1F2@2 1B2@2 1U2@3
}
