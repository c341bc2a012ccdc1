package engine

import (
	"errors"
	"maps"
	"sync"

	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/xla"
)

// arrays tracks the device memory of a rank: what each array is for, and the peak of each kind. It lends arrays for
// communication and reuses those of equal shape, so a deep model needs no more of them than a shallow one
// (constant-size buffers, Rajbhandari et al. 2020, "ZeRO", §6.2). It is safe for concurrent use.
type arrays struct {
	devices *devices
	trace   *trace.Recorder
	rank    int

	mu        sync.Mutex
	spare     map[string][]*dtensor.Tensor // free arrays to lend, by shape and placement
	held      map[*dtensor.Tensor]holding
	now, most map[memest.Kind]int64 // bytes on each device
}

type holding struct {
	kind  memest.Kind
	bytes int64
	lent  string // the key in spare, for an array that was lent
}

func newArrays(d *devices, t *trace.Recorder, rank int) *arrays {
	return &arrays{devices: d, trace: t, rank: rank,
		spare: map[string][]*dtensor.Tensor{}, held: map[*dtensor.Tensor]holding{},
		now: map[memest.Kind]int64{}, most: map[memest.Kind]int64{}}
}

// add tracks arrays that a program has returned, or that were placed.
func (a *arrays) add(kind memest.Kind, made ...*dtensor.Tensor) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, t := range made {
		a.hold(t, holding{kind: kind, bytes: t.ShardShape().ByteSize()})
	}
}

func (a *arrays) hold(t *dtensor.Tensor, h holding) {
	a.held[t] = h
	a.count(h.kind, h.bytes)
}

func (a *arrays) count(kind memest.Kind, n int64) {
	a.now[kind] += n
	a.most[kind] = max(a.most[kind], a.now[kind])
	a.trace.Count(a.rank, string(kind), a.now[kind])
}

// place copies an array of the host to the devices, and tracks it.
func (a *arrays) place(kind memest.Kind, t *tensors.Tensor, on xla.Placement) (*dtensor.Tensor, error) {
	placed, err := a.devices.place(t, on)
	if err == nil {
		a.add(kind, placed)
	}
	return placed, err
}

// borrow returns an array with undefined elements. The shape is that over all devices.
func (a *arrays) borrow(kind memest.Kind, shape shapes.Shape, on xla.Placement) (*dtensor.Tensor, error) {
	key := shape.String() + on.String()
	a.mu.Lock()
	defer a.mu.Unlock()
	var t *dtensor.Tensor
	if free := a.spare[key]; len(free) > 0 {
		t, a.spare[key] = free[len(free)-1], free[:len(free)-1]
	} else {
		var err error
		if t, err = a.devices.place(tensors.FromShape(shape), on); err != nil {
			return nil, err
		}
	}
	a.hold(t, holding{kind, t.ShardShape().ByteSize(), key})
	return t, nil
}

// changed says that a program returned the donated memory of one array as another one.
func (a *arrays) changed(from, to *dtensor.Tensor) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held[to] = a.held[from]
	delete(a.held, from)
}

// put stores an array in a place, and frees the one that was there.
func (a *arrays) put(at **dtensor.Tensor, kind memest.Kind, t *dtensor.Tensor) error {
	old := *at
	if *at = t; old == nil {
		a.add(kind, t)
		return nil
	}
	a.changed(old, t)
	return old.FinalizeAll()
}

// release ends the use of arrays, which may be nil: borrowed ones are kept for reuse, others are freed at once, since
// the garbage collector would be late.
func (a *arrays) release(list ...*dtensor.Tensor) error {
	var errs []error
	for _, t := range list {
		if t == nil {
			continue
		}
		a.mu.Lock()
		h, ok := a.held[t]
		if delete(a.held, t); ok {
			a.count(h.kind, -h.bytes)
		}
		if h.lent != "" && t.Ok() {
			a.spare[h.lent] = append(a.spare[h.lent], t)
			t = nil
		}
		a.mu.Unlock()
		if t != nil {
			errs = append(errs, t.FinalizeAll())
		}
	}
	return errors.Join(errs...)
}

// begin starts a step: peaks are per step.
func (a *arrays) begin() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.most = maps.Clone(a.now)
}

// peaks returns the most bytes of each kind that each device has held since begin.
func (a *arrays) peaks() map[memest.Kind]int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	most := map[memest.Kind]int64{}
	for kind, n := range a.most {
		if n > 0 {
			most[kind] = n
		}
	}
	return most
}

// close frees everything.
func (a *arrays) close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var errs []error
	for _, free := range a.spare {
		for _, t := range free {
			errs = append(errs, t.FinalizeAll())
		}
	}
	for t := range a.held {
		errs = append(errs, t.FinalizeAll())
	}
	clear(a.spare)
	clear(a.held)
	return errors.Join(errs...)
}
