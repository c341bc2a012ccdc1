package group

import (
	"context"
	"sync"
	"time"
)

// lane orders one rank's collectives, its sends to one peer, or its receives from one:
// they run one at a time, in the order in which they were made.
type lane struct {
	mu    sync.Mutex
	busy  bool
	queue []chan struct{} // one for each call that waits for its turn
	asked uint64          // the number of calls so far

	// What follows belongs to the call whose turn it is.
	wake  chan struct{} // wakes the call to check what it waits for
	timer *time.Timer
}

func newLane() *lane { return &lane{wake: make(chan struct{}, 1)} }

// place is a call's place in its lane.
type place struct {
	*lane
	seq  uint64          // the call's number, from 1
	turn <-chan struct{} // closed when it is the call's turn; nil if it has its turn
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

// signal wakes the call whose turn it is, or the next one that waits.
func (l *lane) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// deadline returns a channel that receives at the timeout of a call whose context has no
// deadline; nil for other calls. Stop it with rest.
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
