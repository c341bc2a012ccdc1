package engine

import (
	"errors"
	"sync"

	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/xla"
)

// Programs are the compiled programs of a spec, shared by the ranks of a process. If ranks have one device each, a
// program runs on any of them.
type Programs struct {
	*common
	backend  *xla.Backend
	original []*step.Plan // before backward passes are split
	ranks    []*own       // by rank of the plans

	kinds chain.Kinds

	mu     sync.Mutex
	shared map[string]*xla.Portable
	host   *hostPrograms
	all    []interface{ Close() }
	closed bool
}

// New checks a spec, and derives each rank's part. Programs are compiled before the first step that needs them.
func New(backend *xla.Backend, s Spec) (*Programs, error) {
	if backend == nil {
		return nil, errors.New("the backend is nil: open one with xla.Open")
	}
	original := s.Plans
	if s.Apart {
		s.Plans = nil
		for _, p := range original {
			s.Plans = append(s.Plans, halved(p))
		}
	}
	c, err := newCommon(s)
	if err != nil {
		return nil, err
	}
	p := &Programs{original: original, common: c, backend: backend, shared: map[string]*xla.Portable{}}
	if c.hosts {
		if p.host, err = newHostPrograms(); err != nil {
			return nil, err
		}
		p.all = append(p.all, p.host)
	}
	for rank := range s.Plans[0].Ranks {
		p.ranks = append(p.ranks, c.newOwn(rank))
	}
	return p, nil
}

// Close frees the programs. None of them may run.
func (p *Programs) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, one := range p.all {
		one.Close()
	}
	p.all = nil
}
