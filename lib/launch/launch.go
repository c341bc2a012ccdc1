// Package launch supervises a job of ranks under mpirun: it starts the job on the hosts that answer, and starts it
// again from its checkpoint when a rank or a host fails.
//
// The parts are data and small functions. [Host] lists come from a hostfile ([ParseHostfile]), a list ([ParseHosts]), a
// Slurm allocation ([Slurm]) or a script ([Discover]); [Probe] says which of them answer; [MPIRun] is mpirun's command
// line; [Start] runs it; and [Supervise] repeats that until the job is done, or is not worth another start.
//
// # What Open MPI leaves to do
//
// No MPI call returns an error when a host fails, and mpirun may hang then. So mpirun is told to notice failed daemons
// by itself, within about eight seconds; whoever supervises it waits a grace time after the first sign of trouble, and
// then kills it with all that it started here. Daemons on other hosts end when they lose mpirun.
//
// # Exit statuses
//
// A job ends with 0 when it is done, with 75 (EX_TEMPFAIL in sysexits.h) where a rank saw that another failed, and
// with 1 where something is wrong that another start would not mend. mpirun passes the status of the first rank that
// failed on; it has 128 and the signal's number where a rank was killed, and statuses of its own from 128 up where a
// daemon failed.
package launch

import (
	"fmt"
	"os"
	"strings"
)

// Again is the exit status of what is worth another start, EX_TEMPFAIL in sysexits.h.
const Again = 75

// Host is a machine that ranks can run on.
type Host struct {
	Name  string
	Slots int // ranks that it takes, at least 1
}

// String returns the host as mpirun's --host has it.
func (h Host) String() string { return fmt.Sprintf("%s:%d", h.Name, h.Slots) }

// Local says whether the host is this machine, by its name or as localhost.
func (h Host) Local() bool {
	own, _ := os.Hostname()
	short, _, _ := strings.Cut(own, ".")
	return h.Name == "localhost" || h.Name == "127.0.0.1" || own != "" && (h.Name == own || h.Name == short)
}

// Slots is the sum of the hosts' slots.
func Slots(hosts []Host) (n int) {
	for _, h := range hosts {
		n += h.Slots
	}
	return n
}

// list is the hosts as mpirun's --host has them.
func list(hosts []Host) string {
	names := make([]string, len(hosts))
	for i, h := range hosts {
		names[i] = h.String()
	}
	return strings.Join(names, ",")
}

// Error is why a job was not finished.
type Error struct {
	// Status is the exit status to pass on: Again where the same job can be continued later, otherwise that of the job.
	Status int
	Err    error
}

func (e *Error) Error() string { return e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }
