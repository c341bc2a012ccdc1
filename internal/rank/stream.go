package rank

import (
	"fmt"
	"runtime/debug"
	"sync"
)

// Stream does one thing after another in the background, as a device's communication stream does. Its methods are for one
// goroutine.
type Stream struct {
	queue chan task
	end   sync.WaitGroup
	err   error // the first; what follows it is not done
}

type task struct {
	do   func() error
	done chan struct{}
}

// NewStream starts a stream; Add waits where so many tasks wait already. Finish must be called.
func NewStream(tasks int) *Stream {
	s := &Stream{queue: make(chan task, tasks)}
	s.end.Go(func() {
		for t := range s.queue {
			if s.err == nil {
				s.err = caught(t.do)
			}
			close(t.done)
		}
	})
	return s
}

// caught makes an error of a panic: the rank fails by it, not the program.
func caught(do func() error) (err error) {
	defer func() {
		if thrown := recover(); thrown != nil {
			err = fmt.Errorf("panic: %v\n%s", thrown, debug.Stack())
		}
	}()
	return do()
}

// Add puts a task behind those before it, and returns what is closed when it is done, or left out since one before it
// failed.
func (s *Stream) Add(do func() error) (done <-chan struct{}) {
	t := task{do, make(chan struct{})}
	s.queue <- t
	return t.done
}

// Finish waits for all tasks, and returns the first error.
func (s *Stream) Finish() error {
	close(s.queue)
	s.end.Wait()
	return s.err
}
