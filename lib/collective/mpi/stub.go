//go:build !mpi

package mpi

import (
	"errors"

	"github.com/shardbook/shardbook/lib/collective/group"
)

// Job is this process's place among those that mpirun started: the group of all of
// them. Its Dump writes the operations of this process alone, since every process
// keeps its own.
type Job struct{ group.Group }

// World starts Open MPI and returns the group of all processes of the job. It is
// called once in a process. Without the build tag mpi it returns an error.
func World(options ...Option) (*Job, error) {
	if _, err := newConfig(options); err != nil {
		return nil, err
	}
	return nil, errors.New("mpi: this program is built without Open MPI: install it (Debian, Ubuntu: apt-get install " +
		"openmpi-bin libopenmpi-dev pkg-config) and build with -tags mpi")
}

// Close says that this process makes no more calls, and ends Open MPI.
func (j *Job) Close() error { return nil }

// Abort ends all processes of the job at once, this one too, with an exit status.
func (j *Job) Abort(status int) {}
