package offload

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/xla"
)

// Stash keeps tensors of a mesh's devices in the host's memory for a while. Transfers run in the background, one after
// the other in each direction.
//
// Its methods may be called from several goroutines at once.
type Stash struct {
	link  *link
	kind  Kind
	stays bool // everything stays on the devices

	mu      sync.Mutex
	entries map[string]*entry
}

// entry is what lies under one key.
type entry struct {
	xs        []*dtensor.Tensor
	away      *transfer // to the host; nil if it stays
	back      *transfer // to the devices; nil if nobody asked for it yet
	collected bool      // by a Get that has not returned yet
}

// NewStash returns an empty stash for tensors on the mesh. Bandwidth, if it is not 0, simulates a slower link, as
// [Options] does. The recorder, which may be nil, gets the transfers' spans and the bytes on both sides.
func NewStash(mesh *xla.Mesh, bandwidth float64, r *trace.Recorder) (*Stash, error) {
	if mesh == nil {
		return nil, errors.New("offload: a stash needs a mesh: make one with Backend.Mesh")
	}
	if err := (Options{Bandwidth: bandwidth}).Validate(); err != nil {
		return nil, err
	}
	return newStash(newLink(mesh, bandwidth, r), "stash", Host), nil
}

func newStash(l *link, kind Kind, where Where) *Stash {
	return &Stash{link: l, kind: kind, stays: where == Device, entries: map[string]*entry{}}
}

// Put begins to move tensors to the host, and to free their memory on the devices. They are the stash's from now on. No
// program may use them any more. A key that is in use is an error, and so is a tensor that was freed.
//
// A cancelled context ends simulated slowness only: what was begun is carried out.
func (s *Stash) Put(ctx context.Context, key string, xs ...*dtensor.Tensor) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, x := range xs {
		if x == nil || !x.Ok() {
			return fmt.Errorf("offload: tensor #%d for %q in the stash is nil or freed: give one that lies on a mesh", i, key)
		}
		if x.Mesh().String() != s.link.mesh.String() {
			return fmt.Errorf("offload: tensor #%d for %q lies on the mesh %v: the stash is %v's", i, key, x.Mesh(), s.link.mesh)
		}
		if slices.Contains(xs[:i], x) || s.link.held.has(x) {
			return fmt.Errorf("offload: tensor #%d for %q is in the stash already: give it once", i, key)
		}
	}
	s.link.held.onDevice(s.kind, xs...)
	_, err := s.enter(ctx, key, xs)
	if err != nil {
		s.link.held.gave(xs...)
	}
	return err
}

// put is Put for tensors that are among the holdings. It returns their transfer, which is nil if they stay.
func (s *Stash) put(ctx context.Context, key string, xs ...*dtensor.Tensor) (*transfer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.enter(ctx, key, xs)
}

// enter makes an entry. The stash is locked.
func (s *Stash) enter(ctx context.Context, key string, xs []*dtensor.Tensor) (*transfer, error) {
	if s.entries[key] != nil {
		return nil, fmt.Errorf("offload: the stash holds something under %q: Get it first, or use another key", key)
	}
	e := &entry{xs: xs}
	if !s.stays {
		e.away = s.link.toHost(ctx, s.label(key), xs)
	}
	s.entries[key] = e
	return e.away, nil
}

func (s *Stash) label(key string) string { return string(s.kind) + " " + key }

// Prefetch begins to bring back what lies under the keys. What is on its way already goes on. A key with nothing under
// it is an error.
func (s *Stash) Prefetch(ctx context.Context, keys ...string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range keys {
		if _, err := s.fetch(ctx, key); err != nil {
			return err
		}
	}
	return nil
}

// fetch has an entry on its way back. The stash is locked.
func (s *Stash) fetch(ctx context.Context, key string) (*entry, error) {
	e := s.entries[key]
	if e == nil || e.collected {
		return nil, fmt.Errorf("offload: the stash holds nothing under %q: Put it first", key)
	}
	if e.back == nil && !s.stays {
		e.back = s.link.toDevice(ctx, e.away, s.label(key), e.xs)
	}
	return e, nil
}

// Get waits until what lies under the key is back on its devices, and returns it: it is the caller's again. If the
// context is cancelled before, that is an error, and the stash keeps it. After a transfer that failed it stays in the
// stash, for Close to free.
func (s *Stash) Get(ctx context.Context, key string) ([]*dtensor.Tensor, error) {
	xs, err := s.get(ctx, ctx, key)
	if err == nil {
		s.link.held.gave(xs...)
	}
	return xs, err
}

// get is Get for tensors that stay among the holdings, with a context of its own for simulated slowness.
func (s *Stash) get(ctx, pace context.Context, key string) ([]*dtensor.Tensor, error) {
	s.mu.Lock()
	e, err := s.fetch(pace, key)
	if err != nil {
		s.mu.Unlock()
		return nil, err
	}
	e.collected = true
	s.mu.Unlock()
	err = e.back.wait(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		e.collected = false
		return nil, err
	}
	delete(s.entries, key)
	return e.xs, nil
}

// Bytes returns what the stash's tensors take on the devices and on the host.
func (s *Stash) Bytes() (device, host int64) {
	m := s.link.held.memory()
	return m.Device.Now[s.kind], m.Host.Now[s.kind]
}

// Close waits for what is on its way, but not for simulated slowness, and frees all that is left. The stash is empty then,
// and may be used again.
func (s *Stash) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries { // each of which may wait for the others
		e.hurry()
	}
	var errs []error
	for key, e := range s.entries {
		e.settle()
		errs = append(errs, s.link.held.free(e.xs...))
		delete(s.entries, key)
	}
	return errors.Join(errs...)
}

// settle waits until nothing moves.
func (e *entry) settle() {
	for _, t := range []*transfer{e.away, e.back} {
		t.wait(context.Background()) // for its end, not for its error
	}
}

// hurry ends the simulated slowness of what moves.
func (e *entry) hurry() {
	for _, t := range []*transfer{e.away, e.back} {
		if t != nil {
			t.hurry()
		}
	}
}

// retreat sends what was brought back but not collected to the host again.
func (s *Stash) retreat(ctx context.Context) error {
	s.mu.Lock()
	var keys []string
	for key, e := range s.entries {
		if e.back != nil {
			keys = append(keys, key)
		}
	}
	s.mu.Unlock()
	wait := context.WithoutCancel(ctx)
	for _, key := range keys {
		xs, err := s.get(wait, ctx, key)
		if err != nil {
			return err
		}
		t, err := s.put(ctx, key, xs...)
		if err := errors.Join(err, t.wait(wait)); err != nil {
			return err
		}
	}
	return nil
}

// peek returns what lies under a key, wherever it is, and leaves it there.
func (s *Stash) peek(key string) []*dtensor.Tensor {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[key]
	if e == nil {
		return nil
	}
	e.settle()
	return e.xs
}
