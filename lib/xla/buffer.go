package xla

import (
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
)

// buffer is go-xla's buffer with an entry in the backend's ledger while it lives. It returns our backend as its own, so
// that GoMLX accepts the outputs of one program as inputs of the next.
type buffer struct {
	compute.Buffer
	backend *Backend
	device  compute.DeviceNum
	entry   *entry
}

// own returns a function that wraps a buffer that go-xla made for a device, or passes on the error if it did not.
func (b *Backend) own(device compute.DeviceNum) func(inner compute.Buffer, err error) (compute.Buffer, error) {
	return func(inner compute.Buffer, err error) (compute.Buffer, error) {
		if err != nil {
			return nil, explain(err)
		}
		shape, err := inner.Shape()
		if err != nil {
			return nil, err
		}
		owned := &buffer{inner, b, device, b.ledger.add(int(device), shape.ByteSize())}
		// go-xla frees unreachable buffers; they leave the ledger then.
		runtime.AddCleanup(owned, (*entry).remove, owned.entry)
		return owned, nil
	}
}

// has returns an error for a device that the backend does not have.
func (b *Backend) has(device compute.DeviceNum) error {
	if device < 0 || int(device) >= b.info.Devices {
		return fmt.Errorf("device %d: choose one from 0 to %d", device, b.info.Devices-1)
	}
	return nil
}

// DeviceNum returns the buffer's device.
func (b *buffer) DeviceNum() (compute.DeviceNum, error) { return b.device, nil }

// Backend returns the buffer's backend.
func (b *buffer) Backend() compute.Backend { return b.backend }

// CopyToDevice copies the buffer to another device of the same backend.
func (b *buffer) CopyToDevice(device compute.DeviceNum) (compute.Buffer, error) {
	if err := b.backend.has(device); err != nil {
		return nil, err
	}
	from, to := b.backend.physical(b.device), b.backend.physical(device)
	if from != to || device == b.device {
		return b.backend.own(device)(b.Buffer.CopyToDevice(to))
	}
	shape, err := b.Shape() // XLA copies to another of its own devices only
	if err != nil {
		return nil, err
	}
	flat := dtypes.MakeAnySlice(shape.DType, shape.Size())
	if err := b.ToFlatData(flat); err != nil {
		return nil, err
	}
	return b.backend.BufferFromFlatData(device, flat, shape)
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

// Live is the number and size of the live buffers on a device.
type Live struct {
	Buffers int
	Bytes   int64 // without padding or the allocator's overhead
}

// ledger counts the live buffers of each device.
type ledger struct {
	mu   sync.Mutex
	live []Live // by device
	peak []int64

	closed bool // whether the devices have been freed, with all buffers
}

// entry is one buffer in the ledger.
type entry struct {
	ledger *ledger
	device int
	bytes  int64
	gone   bool
}

func newLedger(devices int) *ledger {
	return &ledger{live: make([]Live, devices), peak: make([]int64, devices)}
}

func (l *ledger) add(device int, bytes int64) *entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.live[device].Buffers++
	l.live[device].Bytes += bytes
	l.peak[device] = max(l.peak[device], l.live[device].Bytes)
	return &entry{ledger: l, device: device, bytes: bytes}
}

// remove removes the buffer from the ledger; a second call does nothing.
func (e *entry) remove() {
	e.ledger.mu.Lock()
	defer e.ledger.mu.Unlock()
	if e.gone {
		return
	}
	e.gone = true
	if e.ledger.closed {
		return
	}
	e.ledger.live[e.device].Buffers--
	e.ledger.live[e.device].Bytes -= e.bytes
}

// clear empties the ledger when its devices are freed.
func (l *ledger) clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	clear(l.live)
}

// Live returns the live buffers on each device, by device number. A buffer is live until it is finalized, donated, or
// garbage collected.
func (b *Backend) Live() []Live {
	b.ledger.mu.Lock()
	defer b.ledger.mu.Unlock()
	return slices.Clone(b.ledger.live)
}

// PeakBytes returns the largest size of the live buffers on each device since the backend was opened, by device number.
// It does not include temporary buffers of running programs; see Memory.
func (b *Backend) PeakBytes() []int64 {
	b.ledger.mu.Lock()
	defer b.ledger.mu.Unlock()
	return slices.Clone(b.ledger.peak)
}
