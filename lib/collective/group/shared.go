package group

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"weak"
)

// shared is the state of a group, which its ranks share.
type shared struct {
	name    string // of a sub-group; "" for others
	config  config
	members []*member
	helpers int // the number of ranks to wake to help with work

	mu       sync.Mutex // guards what follows, down to subs
	begun    uint64     // the last collective that all ranks arrived at
	arrived  int        // the number of ranks that wait for the next
	here     []bool     // which
	gone     []*departure
	pairs    []*pair // [from*size+to]; nil until used
	children []child
	parent   *shared // keeps it alive: departures come by way of it

	calls    []Call        // the ranks' calls; each may be read by all once all have arrived
	opened   atomic.Uint64 // the last collective that ranks may help with
	finished atomic.Uint64 // the last collective whose work is done
	work     work

	failure atomic.Pointer[Failure] // set once
	failed  chan struct{}           // closed then
}

// member is one rank's view of a shared group. It implements Group.
type member struct {
	*shared
	rank         int
	collectives  *lane
	making       sync.Mutex // of the lanes below, which are nil until used
	sends, recvs []*lane    // by peer
	recorder     *Recorder
	srcs, dsts   pointers // room for the addresses of a block
}

// departure is how a rank ended.
type departure struct {
	reason string
	err    error
}

// child is a sub-group, for as long as anyone uses it.
type child struct {
	group weak.Pointer[shared]
	ranks []int // the rank in the parent of each of its ranks
}

// maxRanks is the largest size of a group. Some of its tables have size² entries.
const maxRanks = 1024

func newShared(name string, config config, recorders []*Recorder) *shared {
	size := len(recorders)
	s := &shared{
		name: name, config: config,
		members: make([]*member, size),
		helpers: runtime.GOMAXPROCS(0) - 1,
		here:    make([]bool, size),
		gone:    make([]*departure, size),
		pairs:   make([]*pair, size*size),
		calls:   make([]Call, size),
		failed:  make(chan struct{}),
	}
	for rank := range s.members {
		s.members[rank] = &member{
			shared: s, rank: rank, collectives: newLane(),
			sends: make([]*lane, size), recvs: make([]*lane, size),
			recorder: recorders[rank],
			srcs:     make(pointers, size), dsts: make(pointers, size),
		}
	}
	return s
}

// fail ends the group by f, unless it has failed before, and returns its failure.
func (s *shared) fail(f *Failure) *Failure {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failLocked(f)
}

func (s *shared) failLocked(f *Failure) *Failure {
	if first := s.failure.Load(); first != nil {
		return first
	}
	f.Group = s.name
	s.failure.Store(f)
	close(s.failed)
	return f
}

// leave records that a rank has ended, here and in sub-groups. Calls that wait for it fail at once.
func (s *shared) leave(rank int, d *departure) {
	s.mu.Lock()
	if s.gone[rank] == nil {
		s.gone[rank] = d
	}
	if r := slices.Index(s.here, true); r >= 0 {
		s.failLocked(d.failure(rank, s.calls[r].Kind, s.begun+1))
	}
	s.leavePairs(rank)
	children := s.children
	s.mu.Unlock()
	for _, c := range children {
		if group := c.group.Value(); group != nil {
			if r := slices.Index(c.ranks, rank); r >= 0 {
				group.leave(r, d)
			}
		}
	}
}

// absent is the failure of a collective because a rank has ended; nil if none has.
func (s *shared) absent(kind Kind, seq uint64) *Failure {
	for rank, d := range s.gone {
		if d != nil {
			return d.failure(rank, kind, seq)
		}
	}
	return nil
}

func (d *departure) failure(rank int, kind Kind, seq uint64) *Failure {
	return &Failure{Rank: rank, Kind: kind, Seq: seq, Reason: d.reason, Err: d.err}
}

// late is the failure of a collective that has waited until its deadline.
func (s *shared) late(kind Kind, seq uint64, waited time.Duration, err error) *Failure {
	var missing []int
	for rank, here := range s.here {
		if !here {
			missing = append(missing, rank)
		}
	}
	reason := fmt.Sprintf("did not arrive within %v (%s)", round(waited), s.members[missing[0]].whereabouts())
	if len(missing) > 1 {
		reason += fmt.Sprintf(", nor did ranks %v", missing[1:])
	}
	return &Failure{Rank: missing[0], Kind: kind, Seq: seq, Reason: reason, Err: err}
}

// whereabouts describes a rank's current or last call, for errors.
func (m *member) whereabouts() string {
	records := m.recorder.Records()
	for _, r := range records {
		if r.Ended.IsZero() {
			return fmt.Sprintf("it is in %v", r)
		}
	}
	if len(records) == 0 {
		return "it has made no call"
	}
	return fmt.Sprintf("its last call was %v", records[len(records)-1])
}

// round rounds a duration for errors.
func round(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(100 * time.Millisecond)
}
