package zero

import (
	"sync"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/trace"
)

// ledger knows what a rank holds of each kind. It may be used by several goroutines at once.
type ledger struct {
	mu        sync.Mutex
	recorder  *trace.Recorder
	rank      int
	now, most Bytes
}

func newLedger(recorder *trace.Recorder, rank int) *ledger {
	return &ledger{recorder: recorder, rank: rank, now: Bytes{}, most: Bytes{}}
}

// set says what is held of a kind.
func (l *ledger) set(kind memest.Kind, values ...*tensors.Tensor) {
	var n int64
	for _, v := range values {
		if v != nil {
			n += v.Shape().ByteSize()
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count(kind, n-l.now[kind])
}

// add says that more, or less, is held of a kind.
func (l *ledger) add(kind memest.Kind, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count(kind, n)
}

func (l *ledger) count(kind memest.Kind, n int64) {
	if n == 0 {
		return
	}
	l.now[kind] += n
	l.most[kind] = max(l.most[kind], l.now[kind])
	l.recorder.Count(l.rank, string(kind), l.now[kind])
}

// begin forgets what was held before: peaks are of one step.
func (l *ledger) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for kind := range l.most {
		l.most[kind] = l.now[kind]
	}
}

func (l *ledger) peaks() Bytes {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := Bytes{}
	for kind, n := range l.most {
		if n > 0 {
			b[kind] = n
		}
	}
	return b
}

// zeros makes an array of zeros on the device.
func (r *Rank) zeros(dtype dtypes.DType, dims ...int) (*tensors.Tensor, error) {
	return r.engine.backend.Put(tensors.FromShape(shapes.Make(dtype, dims...)), r.device)
}

// borrow returns a buffer to communicate with, whatever is in it: see [rank.Pool] and Rajbhandari et al. 2020, §6.2.
func (r *Rank) borrow(dtype dtypes.DType, dims ...int) (*tensors.Tensor, error) {
	shape := shapes.Make(dtype, dims...)
	t, made, err := r.pool.Borrow(shape)
	if made {
		r.memory.add(memest.Communication, shape.ByteSize())
	}
	return t, err
}
