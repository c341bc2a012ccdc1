package schedule_test

import (
	"fmt"
	"os"
	"strings"

	"github.com/shardbook/shardbook/lib/pipeline/schedule"
)

func ExampleOneFOneB() {
	s, err := schedule.OneFOneB(3, 4)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(s)
	fmt.Println("stashed:", s.PeakActivations())
	// Output:
	// schedule 1f1b stages=3 microbatches=4 every=4 weights=flush
	// rank 0: 0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3 0U3
	// rank 1: 1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3 1U3
	// rank 2: 2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3 2U3
	// stashed: [3 2 1]
}

func ExampleDualPipe() {
	s, err := schedule.DualPipe(2, 4)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(s)
	fmt.Println("stages are on ranks", s.Holders())
	// Output:
	// schedule dualpipe stages=2 microbatches=4 every=4 weights=flush
	// rank 0: 0F0 1F2 0F1 1B2 1F3 0B0 1B3 0I1 0W1 0U3 1U3
	// rank 1: 0F2 1F0 0F3 1B0 1F1 0B2 1B1 0I3 0W3 0U3 1U3
	// stages are on ranks [[0 1] [0 1]]
}

// A schedule by hand, in which rank 0 goes back before it has gone forward with all that rank 1 asks for first.
func ExampleSchedule_Check() {
	s, err := schedule.Parse(`
schedule by-hand
rank 0: 0F0 0B0 0F1 0B1 0U1
rank 1: 1F0 1F1 1B0 1B1 1U1`)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(strings.ReplaceAll(s.Check().Error(), "; ", ";\n"))
	// Output:
	// schedule: ranks wait for each other for ever: rank 0 is at 0B0 and waits for 1B0 of rank 1;
	// rank 1 is at 1F1 and waits for 0F1 of rank 0;
	// change the order of one of them
}

// What PyTorch's 1F1B writes, in which empty cells are idle.
func ExampleReadCSV() {
	s, err := schedule.ReadCSV(strings.NewReader("0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1,\n"))
	if err != nil {
		fmt.Println(err)
		return
	}
	s.Name = "from-pytorch"
	if err := s.WriteCSV(os.Stdout); err != nil {
		fmt.Println(err)
	}
	// Output:
	// # schedule from-pytorch stages=2 microbatches=2 every=2 weights=flush
	// 0F0,0F1,0B0,0B1,0U1
	// 1F0,1B0,1F1,1B1,1U1
}

func ExampleSchedule_Programs() {
	s, err := schedule.OneFOneB(2, 2)
	if err != nil {
		fmt.Println(err)
		return
	}
	programs, err := s.Programs()
	if err != nil {
		fmt.Println(err)
		return
	}
	for r, program := range programs {
		fmt.Printf("rank %d:\n", r)
		for _, op := range program {
			fmt.Println(" ", op)
		}
	}
	// Output:
	// rank 0:
	//   0F0
	//   send 0F0 to 1
	//   recv 1B0 from 1
	//   0F1
	//   send 0F1 to 1
	//   recv 1B1 from 1
	//   0B0
	//   0B1
	//   0U1
	// rank 1:
	//   recv 0F0 from 0
	//   1F0
	//   recv 0F1 from 0
	//   1B0
	//   send 1B0 to 0
	//   1F1
	//   1B1
	//   send 1B1 to 0
	//   1U1
}

func ExampleSchedule_Versions() {
	s, err := schedule.PipeDream(3, 5, false)
	if err != nil {
		fmt.Println(err)
		return
	}
	versions, err := s.Versions()
	if err != nil {
		fmt.Println(err)
		return
	}
	for r, list := range s.Ranks {
		fmt.Printf("rank %d:", r)
		for i, a := range list {
			fmt.Printf(" %v@%d", a, versions[r][i])
		}
		fmt.Println()
	}
	// Output:
	// rank 0: 0F0@0 0F1@0 0F2@0 0B0@0 0U0@1 0F3@1 0B1@0 0U1@2 0F4@2 0B2@0 0U2@3 0B3@1 0U3@4 0B4@2 0U4@5
	// rank 1: 1F0@0 1F1@0 1B0@0 1U0@1 1F2@1 1B1@0 1U1@2 1F3@2 1B2@1 1U2@3 1F4@3 1B3@2 1U3@4 1B4@3 1U4@5
	// rank 2: 2F0@0 2B0@0 2U0@1 2F1@1 2B1@1 2U1@2 2F2@2 2B2@2 2U2@3 2F3@3 2B3@3 2U3@4 2F4@4 2B4@4 2U4@5
}
