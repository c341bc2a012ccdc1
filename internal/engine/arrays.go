package engine

import (
	"errors"
	"fmt"
	"maps"
	"sync"
	"unsafe"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/dtypes/bfloat16"
	"github.com/gomlx/compute/dtypes/float16"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/collective/group"
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

// release ends the use of arrays, which may be nil: borrowed ones are kept for reuse, others are freed at once.
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
	most := maps.Clone(a.most)
	maps.DeleteFunc(most, func(_ memest.Kind, n int64) bool { return n <= 0 })
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

// memory is an array's memory in the form that a group takes: the device's own, or a copy on the host if that is not
// one contiguous range that the host can access.
type memory struct {
	kind   group.Type
	buffer group.Buffer
	staged *tensors.Tensor // the copy, or nil
	on     *dtensor.Tensor // the array, kept alive
}

// memoryOf returns an array's memory with its contents.
func (r *Rank) memoryOf(on *dtensor.Tensor) (*memory, error) {
	m := &memory{on: on}
	if r.reachable() {
		var err error
		m.kind, m.buffer, err = viewed(on.Shards()[0])
		return m, err
	}
	host, err := merged(on)
	if err != nil {
		return nil, err
	}
	return m, m.stage(host)
}

// reachable reports whether arrays on the rank's devices are one contiguous range of memory that the host can access.
func (r *Rank) reachable() bool {
	return r.mesh.NumDevices() == 1 && !r.Staged && r.backend.HasSharedBuffers()
}

func (m *memory) stage(host *tensors.Tensor) error {
	kind, err := typeOf(host)
	if err != nil {
		return err
	}
	m.kind, m.staged = kind, host
	return host.MutableBytes(func(data []byte) {
		m.buffer = group.Buffer{Data: unsafe.Pointer(unsafe.SliceData(data)), Len: host.Size()}
	})
}

// viewed returns the memory of a tensor that the host can access (see [xla.View]), without a copy. Keep the tensor
// alive while the group uses it.
func viewed(t *tensors.Tensor) (group.Type, group.Buffer, error) {
	kind, err := typeOf(t)
	if err != nil {
		return 0, group.Buffer{}, err
	}
	buffer, err := sendable[t.DType()].view(t)
	return kind, buffer, err
}

// typeOf returns the group's type for a tensor's.
func typeOf(t *tensors.Tensor) (group.Type, error) {
	of, ok := sendable[t.DType()]
	if !ok {
		return 0, fmt.Errorf("engine: a tensor of %v: ranks can send float32, float64, bfloat16, float16, int32 and "+
			"uint8", t.DType())
	}
	return of.kind, nil
}

// sendable are the types that ranks can send.
var sendable = map[dtypes.DType]struct {
	kind group.Type
	view func(t *tensors.Tensor) (group.Buffer, error)
}{
	dtypes.Float32:  {group.Float32, view[float32]},
	dtypes.Float64:  {group.Float64, view[float64]},
	dtypes.BFloat16: {group.BFloat16, view[bfloat16.BFloat16]},
	dtypes.Float16:  {group.Float16, view[float16.Float16]},
	dtypes.Int32:    {group.Int32, view[int32]},
	dtypes.Uint8:    {group.Uint8, view[uint8]},
}

func view[T group.Element](t *tensors.Tensor) (group.Buffer, error) {
	values, err := xla.View[T](t)
	return group.Buffer{Data: unsafe.Pointer(unsafe.SliceData(values)), Len: len(values)}, err
}
