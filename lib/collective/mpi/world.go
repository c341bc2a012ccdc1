//go:build mpi

package mpi

// #include "ompi.h"
import "C"

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/shardbook/shardbook/lib/collective/group"
)

// Job is the group of all processes that mpirun started (MPI_COMM_WORLD). Its Dump writes
// the operations of this process only.
type Job struct {
	group.Group
	world *world
}

// world is the state that the groups of a process share.
type world struct {
	config
	rank     int
	recorder *group.Recorder

	mu     sync.Mutex
	groups []*ranks

	open   sync.RWMutex // read-locked by calls, locked to close
	closed bool
}

var started struct {
	sync.Mutex
	done bool
}

// World starts Open MPI (MPI_Init) and returns the group of all processes of the job. It is called once in a process,
// and waits for all of them to call it, at most for the timeout. If it returns an error, the process should exit.
func World(options ...Option) (*Job, error) {
	config, err := newConfig(options)
	if err != nil {
		return nil, err
	}
	started.Lock()
	defer started.Unlock()
	if started.done {
		return nil, errors.New("mpi: World was called before in this process: pass its result on")
	}
	started.done = true
	type start struct{ code, provided C.int }
	starting := make(chan start, 1)
	go func() {
		var s start
		s.code = C.MPI_Init_thread(nil, nil, C.MPI_THREAD_MULTIPLE, &s.provided)
		starting <- s
	}()
	var provided C.int
	select {
	case s := <-starting:
		if s.code != C.MPI_SUCCESS {
			return nil, fmt.Errorf("mpi: it does not start: error %d", s.code)
		}
		provided = s.provided
	case <-time.After(config.timeout):
		return nil, fmt.Errorf("%w within %v: exit, with a status that is not 0", ErrLate, config.timeout)
	}
	if provided < C.MPI_THREAD_MULTIPLE {
		return nil, errors.New("mpi: this Open MPI is built without MPI_THREAD_MULTIPLE: install one that has it")
	}
	var comm C.MPI_Comm
	if code := C.shardbook_start(&comm); code != C.MPI_SUCCESS {
		return nil, mpiError(code)
	}
	w := &world{config: config, recorder: group.NewRecorder()}
	g, err := newRanks("", comm, w)
	if err != nil {
		return nil, err
	}
	w.rank = g.rank
	return &Job{Group: g, world: w}, nil
}

// whileOpen runs f unless the job is closed: MPI must not be called after its end.
func (w *world) whileOpen(f func() error) error {
	w.open.RLock()
	defer w.open.RUnlock()
	if w.closed {
		return errClosed
	}
	return f()
}

var errClosed = errors.New("mpi: the job is closed: make calls before Close")

// Close ends this process's groups, sub-groups included, and Open MPI: running calls of this process fail, and so do
// calls of other ranks that wait for this one. It waits for the other ranks to call Close, at most for the timeout, and
// returns an error if they do not; the process should exit then. It may be called again.
func (j *Job) Close() error {
	w := j.world
	w.mu.Lock()
	for _, g := range w.groups {
		g.post.leave()
	}
	w.mu.Unlock()
	w.open.Lock()
	defer w.open.Unlock()
	if w.closed {
		return nil
	}
	w.closed = true
	for _, g := range w.groups {
		g.post.close()
	}
	done := make(chan C.int, 1)
	go func() { done <- C.MPI_Finalize() }()
	select {
	case code := <-done:
		if code != C.MPI_SUCCESS {
			return mpiError(code)
		}
		return nil
	case <-time.After(w.timeout):
		return fmt.Errorf("mpi: not all ranks closed the job within %v: exit, with a status that is not 0", w.timeout)
	}
}

// Abort ends all processes of the job at once, this one too, with an exit status (MPI_Abort).
func (j *Job) Abort(status int) { C.MPI_Abort(C.shardbook_world(), C.int(status)) }
