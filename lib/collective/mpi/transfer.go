//go:build mpi

package mpi

/*
#cgo pkg-config: ompi-c
#include "ompi.h"
*/
import "C"

import (
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"github.com/shardbook/shardbook/lib/collective/group"
)

// transfer is a set of MPI requests, with the memory that MPI reads and writes for them.
// The caller tests the requests until they are done, and then ends the transfer.
type transfer struct {
	comm     C.MPI_Comm
	requests []C.MPI_Request
	pins     runtime.Pinner
	last     func() // called when the requests are done, if not nil
	err      error  // of a request that did not start
}

// abandoned has the transfers that were given up. MPI may still write to their memory, so
// it is pinned until the process ends.
var abandoned struct {
	sync.Mutex
	all []*transfer
}

// add starts a request.
func (t *transfer) add(start func(*C.MPI_Request) C.int) {
	t.requests = append(t.requests, nil)
	last := len(t.requests) - 1
	if code := start(&t.requests[last]); code != C.MPI_SUCCESS {
		t.requests = t.requests[:last]
		t.err = mpiError(code)
	}
}

// nothing stands for buffers of no elements, which may have no address.
var nothing [8]byte

// pin pins a buffer until the transfer ends, and returns its address.
func (t *transfer) pin(b group.Buffer) unsafe.Pointer {
	if b.Len == 0 {
		return unsafe.Pointer(&nothing)
	}
	t.pins.Pin(b.Data)
	return b.Data
}

// send starts a message to a rank.
func (t *transfer) send(b group.Buffer, typ group.Type, to, tag int) {
	data := t.pin(b)
	t.add(func(r *C.MPI_Request) C.int {
		return C.MPI_Isend(data, C.int(b.Len), C.shardbook_type(C.int(typ)), C.int(to), C.int(tag), t.comm, r)
	})
}

// recv starts to receive a message of as many elements from a rank.
func (t *transfer) recv(b group.Buffer, typ group.Type, from, tag int) {
	data := t.pin(b)
	t.add(func(r *C.MPI_Request) C.int {
		return C.MPI_Irecv(data, C.int(b.Len), C.shardbook_type(C.int(typ)), C.int(from), C.int(tag), t.comm, r)
	})
}

// done tests the requests, and gives MPI the chance to make progress.
func (t *transfer) done() (bool, error) {
	if t.err != nil {
		return false, t.err
	}
	if len(t.requests) == 0 {
		return true, nil
	}
	code := C.shardbook_all_done(C.int(len(t.requests)), &t.requests[0])
	if code < 0 {
		return false, mpiError(-code)
	}
	return code == 1, nil
}

// end unpins the memory if the requests are done. After an error it abandons the transfer.
func (t *transfer) end(err error) {
	if err == nil {
		if t.last != nil {
			t.last()
		}
		t.pins.Unpin()
		return
	}
	abandoned.Lock()
	defer abandoned.Unlock()
	abandoned.all = append(abandoned.all, t)
}

// mpiError is an error code in MPI's words.
func mpiError(code C.int) error {
	var text [C.MPI_MAX_ERROR_STRING]C.char
	var n C.int
	C.MPI_Error_string(code, &text[0], &n)
	return fmt.Errorf("mpi: %s", C.GoStringN(&text[0], n))
}
