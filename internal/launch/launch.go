// Package launch supervises a job of ranks under mpirun, as torchrun does: it starts the job on the hosts that answer,
// and restarts it from its checkpoint when a rank or a host fails.
//
// [Host] lists come from a hostfile ([ParseHostfile]), a list ([ParseHosts]), a Slurm allocation ([Slurm]) or a script
// ([Discover]). [Probe] finds those that answer, [MPIRun] builds mpirun's command line, [Start] runs it, and
// [Supervise] repeats this until the job is done or a restart would not help.
//
// # What Open MPI leaves to do
//
// No MPI call returns an error when a host fails, and mpirun may hang then. So mpirun is set to detect failed daemons
// within about eight seconds; the supervisor waits a grace time after the first sign of trouble, and then kills mpirun
// and all processes that it started on this machine. Daemons on other hosts end when their connection to mpirun closes.
//
// # Exit statuses
//
// A job ends with 0 when it is done, with 75 (EX_TEMPFAIL in sysexits.h) if a rank detected that another failed, and
// with 1 for an error that a restart would not solve. mpirun returns the status of the first rank that failed: 128 plus
// the signal's number for a killed rank, and its own statuses from 128 up for a failed daemon.
package launch

import (
	"fmt"
	"os"
	"strings"
)

// Again is the exit status of a job that a restart may finish, EX_TEMPFAIL in sysexits.h.
const Again = 75

// Host is a machine that ranks can run on.
type Host struct {
	Name  string
	Slots int // ranks that it takes, at least 1
}

// String returns the host in the format of mpirun's --host.
func (h Host) String() string { return fmt.Sprintf("%s:%d", h.Name, h.Slots) }

// Local reports whether the host is this machine, by its name or as localhost.
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

// list returns the hosts in the format of mpirun's --host.
func list(hosts []Host) string {
	names := make([]string, len(hosts))
	for i, h := range hosts {
		names[i] = h.String()
	}
	return strings.Join(names, ",")
}

// Error says why a job did not finish.
type Error struct {
	// Status is the exit status to return: Again if the job can be continued later, otherwise the job's own.
	Status int
	Err    error
}

func (e *Error) Error() string { return e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }
