package group

import "errors"

// Pending is a call that runs in the background: MPI's request, PyTorch's Work.
type Pending struct {
	done chan struct{}
	err  error
}

var errAbandoned = errors.New("the call ended without a result")

// NewPending runs f in a new goroutine. It is for implementations of [Group].
func NewPending(f func() error) *Pending {
	p := &Pending{done: make(chan struct{}), err: errAbandoned}
	go func() {
		defer close(p.done)
		p.err = f()
	}()
	return p
}

// Wait waits until the call has ended and returns its error. It may be called several
// times, by several goroutines. The wait is bounded by the call's context and timeout.
func (p *Pending) Wait() error {
	<-p.done
	return p.err
}

// Done is closed when the call has ended.
func (p *Pending) Done() <-chan struct{} { return p.done }

// WaitAll waits for all of the calls, and returns the first error in their order.
func WaitAll(calls ...*Pending) (first error) {
	for _, p := range calls {
		if err := p.Wait(); first == nil {
			first = err
		}
	}
	return first
}
