package xla

import (
	"fmt"
	"runtime"

	"github.com/gomlx/compute"
)

// buffer is go-xla's buffer with an entry in the backend's ledger while it lives. It returns our backend as its own, so
// that GoMLX accepts the outputs of one program as inputs of the next.
type buffer struct {
	compute.Buffer
	backend *Backend
	entry   *entry
}

// own wraps a buffer that go-xla made.
func (b *Backend) own(inner compute.Buffer) (compute.Buffer, error) {
	shape, err := inner.Shape()
	if err != nil {
		return nil, err
	}
	device, err := inner.DeviceNum()
	if err != nil {
		return nil, err
	}
	owned := &buffer{Buffer: inner, backend: b, entry: b.ledger.add(int(device), shape.ByteSize())}
	// go-xla frees unreachable buffers; they leave the ledger then.
	runtime.AddCleanup(owned, (*entry).remove, owned.entry)
	return owned, nil
}

// Backend returns the buffer's backend.
func (b *buffer) Backend() compute.Backend { return b.backend }

// CopyToDevice copies the buffer to another device of the same backend.
func (b *buffer) CopyToDevice(device compute.DeviceNum) (compute.Buffer, error) {
	inner, err := b.Buffer.CopyToDevice(device)
	if err != nil {
		return nil, err
	}
	return b.backend.own(inner)
}

// Finalize frees the buffer at once.
func (b *buffer) Finalize() error {
	b.entry.remove()
	return b.Buffer.Finalize()
}

// inner returns go-xla's buffer in one of this backend's.
func (b *Backend) inner(of compute.Buffer) (compute.Buffer, error) {
	owned, ok := of.(*buffer)
	if !ok || owned.backend != b {
		return nil, fmt.Errorf("a buffer of type %T was not made by this backend: make it with the backend "+
			"that runs the program", of)
	}
	return owned.Buffer, nil
}
