//go:build !mpi

package mpi

import (
	"errors"

	"github.com/shardbook/shardbook/lib/collective/group"
)

// Job is the group of all processes that mpirun started (MPI_COMM_WORLD). Its Dump writes
// the operations of this process only.
type Job struct{ group.Group }

// World starts Open MPI (MPI_Init) and returns the group of all processes of the job.
// Without the build tag mpi it returns an error.
func World(options ...Option) (*Job, error) {
	if _, err := newConfig(options); err != nil {
		return nil, err
	}
	return nil, errors.New("mpi: this program is built without Open MPI: install it (Debian, Ubuntu: apt-get install " +
		"openmpi-bin libopenmpi-dev pkg-config) and build with -tags mpi")
}

// Close ends this process's groups and Open MPI.
func (j *Job) Close() error { return nil }

// Abort ends all processes of the job at once, this one too, with an exit status (MPI_Abort).
func (j *Job) Abort(status int) {}
