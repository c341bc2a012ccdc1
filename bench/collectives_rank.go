package main

import (
	"errors"
	"slices"
	"sync"
	"time"
)

// engine does collective operations for one rank.
type engine interface {
	// do gives in and gets out; an operation in place has no out. It returns an
	// errUnsupported for an operation that it does not have.
	do(op string, in, out []float32) error
	barrier() error
}

// rankSubject is one rank that is measured.
type rankSubject struct {
	number int
	engine
	collectiveCase
	in, out []float32
}

func (s *rankSubject) rank() int { return s.number }

func (s *rankSubject) prepare(params []byte) (err error) {
	if s.collectiveCase, err = parseCollective(params); err != nil {
		return err
	}
	in, out := s.counts()
	s.in, s.out = make([]float32, in), make([]float32, out)
	return s.verify()
}

func (s *rankSubject) sample(calls int) (float64, error) {
	s.fillInput(s.in, s.number)
	err := errors.Join(s.do(s.Op, s.in, s.out), s.barrier()) // the first call after a pause is slow
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	for range calls {
		if err := s.do(s.Op, s.in, s.out); err != nil {
			return 0, err
		}
	}
	return milliseconds(begin, calls), nil
}

func (s *rankSubject) finish() error {
	err := s.verify()
	s.in, s.out = nil, nil
	return err
}

// verify makes one call and checks what it gives.
func (s *rankSubject) verify() error {
	s.fillInput(s.in, s.number)
	clear(s.out)
	if err := s.do(s.Op, s.in, s.out); err != nil {
		return err
	}
	if len(s.out) == 0 {
		return s.check(s.in, s.number)
	}
	return s.check(s.out, s.number)
}

func milliseconds(begin time.Time, calls int) float64 {
	return time.Since(begin).Seconds() * 1e3 / float64(calls)
}

// together is a subject whose ranks are goroutines of this process. Each waits in
// obey, so that it costs nothing between requests.
type together []chan func(subject)

func newTogether(ranks int) together {
	t := make(together, ranks)
	for i := range t {
		t[i] = make(chan func(subject))
	}
	return t
}

// obey does what one rank is asked to, until end.
func (t together) obey(rank int, s subject) {
	for do := range t[rank] {
		do(s)
	}
}

func (t together) end() {
	for _, work := range t {
		close(work)
	}
}

// each has every rank do something at the same time, and returns the time of the
// slowest.
func (t together) each(do func(subject) (float64, error)) (float64, error) {
	times, errs := make([]float64, len(t)), make([]error, len(t))
	var working sync.WaitGroup
	working.Add(len(t))
	for i, work := range t {
		work <- func(s subject) {
			times[i], errs[i] = do(s)
			working.Done()
		}
	}
	working.Wait()
	return slices.Max(times), errors.Join(errs...)
}

func (t together) prepare(params []byte) error {
	_, err := t.each(func(s subject) (float64, error) { return 0, s.prepare(params) })
	return err
}

func (t together) sample(calls int) (float64, error) {
	return t.each(func(s subject) (float64, error) { return s.sample(calls) })
}

func (t together) finish() error {
	_, err := t.each(func(s subject) (float64, error) { return 0, s.finish() })
	return err
}
