package group

import (
	"context"
	"sync"
	"time"
)

// lane orders one rank's calls of one sort: its collectives, its sends to one peer,
// or its receives from one. They run one at a time, in the order they were asked for.
type lane struct {
	mu    sync.Mutex
	busy  bool
	queue []chan struct{} // a place for each call that waits for its turn
	asked uint64          // how many calls there were

	// What follows belongs to the call whose turn it is.
	wake  chan struct{} // says that what the call waits for may have happened
	timer *time.Timer
}

func newLane() *lane { return &lane{wake: make(chan struct{}, 1)} }

// place is a call's place in its lane.
type place struct {
	*lane
	seq  uint64          // the call's number, from 1
	turn <-chan struct{} // closed when it is the call's turn; nil if it was at once
}

// ask takes the next place.
func (l *lane) ask() place {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked++
	if !l.busy {
		l.busy = true
		return place{lane: l, seq: l.asked}
	}
	turn := make(chan struct{})
	l.queue = append(l.queue, turn)
	return place{lane: l, seq: l.asked, turn: turn}
}

// leave gives the turn to the next call.
func (l *lane) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) == 0 {
		l.busy = false
		return
	}
	close(l.queue[0])
	l.queue = l.queue[1:]
}

// signal wakes the call whose turn it is, or leaves word for when it will wait.
func (l *lane) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// deadline returns a channel that tells when a call without a deadline of its own
// is out of time; nil for a call that has one. Stop it with rest.
func (l *lane) deadline(ctx context.Context, timeout time.Duration) <-chan time.Time {
	if _, has := ctx.Deadline(); has {
		return nil
	}
	if l.timer == nil {
		l.timer = time.NewTimer(timeout)
	} else {
		l.timer.Reset(timeout)
	}
	return l.timer.C
}

func (l *lane) rest() {
	if l.timer != nil {
		l.timer.Stop()
	}
}
