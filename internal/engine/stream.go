package engine

import (
	"fmt"
	"runtime/debug"
	"sync"
)

// stream does one thing after another in the background, as a device's communication stream does. Its methods are for
// one goroutine.
type stream struct {
	queue chan task
	end   sync.WaitGroup
}

type task struct {
	do   func() error
	done chan struct{}
	err  *error
}

func newStream(tasks int) *stream {
	s := &stream{queue: make(chan task, tasks)}
	s.end.Go(func() {
		for t := range s.queue {
			*t.err = t.do()
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

// add puts a task behind those before it. Wait returns its error, once it is done.
func (s *stream) add(do func() error) (done <-chan struct{}, wait func() error) {
	t := task{do, make(chan struct{}), new(error)}
	s.queue <- t
	return t.done, func() error {
		<-t.done
		return *t.err
	}
}

// close waits for all tasks.
func (s *stream) close() {
	close(s.queue)
	s.end.Wait()
}
