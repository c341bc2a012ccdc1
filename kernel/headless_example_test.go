package kernel_test

import (
	"fmt"
	"time"

	"github.com/shardbook/shardbook/kernel"
)

func ExampleTimes() {
	var times kernel.Times
	run := kernel.Run{OnRan: times.Ran}
	run.OnRan(2, 1500*time.Millisecond)
	run.OnRan(5, 20*time.Second)
	fmt.Println(times)
	// Output: cell 2 1.5 s, cell 5 20.0 s, 2 cells 21.5 s
}
