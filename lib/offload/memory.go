package offload

import (
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/trace"
)

// Kind says what memory is for.
type Kind string

const (
	Parameters  Kind = "parameters"  // what the passes compute with
	Optimizer   Kind = "optimizer"   // the rule's states, and the master copy of the parameters where there is one
	Activations Kind = "activations" // inputs of blocks, and the gradients of these
	Gradients   Kind = "gradients"   // of parameters
	Batch       Kind = "batch"       // targets, loss and the step's number
)

// Bytes is memory by kind.
type Bytes map[Kind]int64

// Total is the memory of all kinds together.
func (b Bytes) Total() (total int64) {
	for _, n := range b {
		total += n
	}
	return total
}

// Use is the use of one memory: now, and when it was largest since the last step began.
type Use struct{ Now, Peak Bytes }

// Memory is what a run's arrays take of both memories, in bytes. It is counted as arrays are made, moved and freed; a
// program's temporary buffers, and memory that was freed but not given back yet, are not in it.
type Memory struct{ Device, Host Use }

// holdings is everything that a run holds: what it is, and where. So it can all be counted, and freed.
type holdings struct {
	mu    sync.Mutex
	all   map[freer]holding
	use   [2]Use // by Where
	trace *trace.Recorder
}

// freer is a tensor, placed on a mesh or not.
type freer interface{ FinalizeAll() error }

type holding struct {
	kind  Kind
	at    Where
	bytes int64
}

func newHoldings(r *trace.Recorder) *holdings {
	h := &holdings{all: map[freer]holding{}, trace: r}
	for at := range h.use {
		h.use[at] = Use{Bytes{}, Bytes{}}
	}
	return h
}

// change counts bytes.
func (h *holdings) change(at Where, kind Kind, bytes int64) {
	use := &h.use[at]
	if use.Now[kind] += bytes; use.Now.Total() > use.Peak.Total() {
		use.Peak = maps.Clone(use.Now)
	}
	h.trace.Count(0, at.String()+" "+string(kind), use.Now[kind])
}

func (h *holdings) add(x freer, now holding) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all[x] = now
	h.change(now.at, now.kind, now.bytes)
}

func (h *holdings) has(x freer) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, ok := h.all[x]
	return ok
}

// onDevice adds placed tensors.
func (h *holdings) onDevice(kind Kind, xs ...*dtensor.Tensor) {
	for _, x := range xs {
		h.add(x, holding{kind, Device, bytesOf(x)})
	}
}

// moved notes that a tensor is somewhere else now.
func (h *holdings) moved(x freer, to Where) {
	h.mu.Lock()
	defer h.mu.Unlock()
	was := h.all[x]
	h.change(to, was.kind, was.bytes)
	h.change(was.at, was.kind, -was.bytes)
	was.at = to
	h.all[x] = was
}

// gave takes tensors out that are somebody else's now. Of what is not held it takes no note.
func (h *holdings) gave(xs ...*dtensor.Tensor) {
	for _, x := range xs {
		h.remove(x)
	}
}

func (h *holdings) remove(x freer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if was, ok := h.all[x]; ok {
		delete(h.all, x)
		h.change(was.at, was.kind, -was.bytes)
	}
}

// free frees tensors at once: the garbage collector would come late.
func (h *holdings) free(xs ...*dtensor.Tensor) error {
	var errs []error
	for _, x := range xs {
		errs = append(errs, h.freeOne(x))
	}
	return errors.Join(errs...)
}

func (h *holdings) freeOne(x freer) error {
	err := x.FinalizeAll()
	h.remove(x)
	return err
}

// freeKinds frees all that is of one of the kinds.
func (h *holdings) freeKinds(kinds ...Kind) error {
	h.mu.Lock()
	var of []freer
	for x, now := range h.all {
		if slices.Contains(kinds, now.kind) {
			of = append(of, x)
		}
	}
	h.mu.Unlock()
	var errs []error
	for _, x := range of {
		errs = append(errs, h.freeOne(x))
	}
	return errors.Join(errs...)
}

// newPeak forgets the peak.
func (h *holdings) newPeak() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for at := range h.use {
		h.use[at].Peak = maps.Clone(h.use[at].Now)
	}
}

func (h *holdings) memory() Memory {
	h.mu.Lock()
	defer h.mu.Unlock()
	clone := func(u Use) Use { return Use{maps.Clone(u.Now), maps.Clone(u.Peak)} }
	return Memory{Device: clone(h.use[Device]), Host: clone(h.use[Host])}
}

func bytesOf(x *dtensor.Tensor) (total int64) {
	for _, shard := range x.Shards() {
		total += shard.Shape().ByteSize()
	}
	return total
}
