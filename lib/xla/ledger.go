package xla

import (
	"slices"
	"sync"
)

// Live is what lies on one device now.
type Live struct {
	Buffers int   // number of buffers
	Bytes   int64 // their size, without padding or the allocator's own overhead
}

// ledger counts the live buffers of each device.
type ledger struct {
	mu   sync.Mutex
	live []Live // by device
	peak []int64

	closed bool // the devices are gone, and every buffer with them
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

// remove takes the buffer out of the ledger; a second call does nothing.
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

// clear empties the ledger when its devices are gone.
func (l *ledger) clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	clear(l.live)
}

// Live returns what lies on each device now, by device number. A buffer leaves
// the count when it is finalized, donated, or found unreachable by Go's garbage
// collector.
func (b *Backend) Live() []Live {
	b.ledger.mu.Lock()
	defer b.ledger.mu.Unlock()
	return slices.Clone(b.ledger.live)
}

// PeakBytes returns the most bytes that lay on each device at once since the
// backend was opened, by device number. Temporary buffers inside a running
// program are not in it: Memory has them.
func (b *Backend) PeakBytes() []int64 {
	b.ledger.mu.Lock()
	defer b.ledger.mu.Unlock()
	return slices.Clone(b.ledger.peak)
}
