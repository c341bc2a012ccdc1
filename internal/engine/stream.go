package engine

import (
	"fmt"
	"runtime/debug"
	"sync"
)

// stream runs tasks one after another in the background, like a device's communication stream. It is not safe for
// concurrent use.
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

// caught returns a panic as an error, so that it fails the rank and not the process.
func caught(do func() error) (err error) {
	defer func() {
		if thrown := recover(); thrown != nil {
			err = fmt.Errorf("panic: %v\n%s", thrown, debug.Stack())
		}
	}()
	return do()
}

// add appends a task. Wait returns its error, once it is done.
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
