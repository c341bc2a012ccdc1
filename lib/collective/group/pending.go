package group

import "errors"

// Pending is a call under way in the background.
type Pending struct {
	done chan struct{}
	err  error
}

var errAbandoned = errors.New("the call ended without a result")

// NewPending runs f in a goroutine of its own. It is for implementations of Group.
func NewPending(f func() error) *Pending {
	p := &Pending{done: make(chan struct{}), err: errAbandoned}
	go func() {
		defer close(p.done)
		p.err = f()
	}()
	return p
}

// Wait waits for the call's end and returns its error. It may be called again and
// by several goroutines. The wait is bounded by the call's own context and timeout.
func (p *Pending) Wait() error {
	<-p.done
	return p.err
}

// Done is closed at the call's end.
func (p *Pending) Done() <-chan struct{} { return p.done }

// WaitAll waits for all of the calls, and returns the error of the first that has one.
func WaitAll(calls ...*Pending) (first error) {
	for _, p := range calls {
		if err := p.Wait(); first == nil {
			first = err
		}
	}
	return first
}
