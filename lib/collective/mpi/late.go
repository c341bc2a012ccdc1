package mpi

import "errors"

// ErrLate is what World's error wraps when a process of the job did not come in time: another start may do better.
var ErrLate = errors.New("mpi: not all processes of the job started")
