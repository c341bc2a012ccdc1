package xla

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/shardbook/shardbook/lib/xplane"
)

// What a cell asks of the process that has its devices besides the requests of lib/resident.

type (
	// askCollectives asks for a program's collectives; the answer is collectivesAre.
	askCollectives struct{ Program uint64 }
	collectivesAre struct{ All []between }

	// askOperations asks for a program's operations; the answer is operationsAre.
	askOperations struct{ Program uint64 }
	operationsAre struct{ All []Operation }

	// askMet has the collectives by kernels checked.
	askMet struct{ Program uint64 }

	// startProfile starts XLA's profiler, and endProfile ends it; the answer is profileIs.
	startProfile struct{ Client uint64 }
	endProfile   struct{ Client uint64 }
	profileIs    struct {
		Profile    *xplane.Profile
		NoProfiler bool
	}

	// askMemory asks what the process keeps, after it has freed what is unused, and how long it has worked; the answer
	// is memoryIs.
	askMemory struct{ Free bool }
	memoryIs  struct {
		Used, Unused int
		Processor    time.Duration
	}

	// askDevice asks for the memory of a device; the answer is DeviceMemory.
	askDevice struct {
		Client uint64
		Device int
	}
)

// ownTime is the processor time of this process.
func ownTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
