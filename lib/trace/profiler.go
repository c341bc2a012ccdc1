package trace

import (
	"errors"
	"time"
)

// Profiler records the steps of a run that a [Schedule] chooses, and passes each finished window of steps to a
// function, like torch.profiler.profile. The steps record with [Profiler.Recorder]; the loop calls Step after each:
//
//	for range steps {
//		...
//		err := p.Step()
//	}
//	err := p.Close()
//
// A nil Profiler records nothing. One goroutine calls Step and Close; with several ranks, one of them calls Step when
// all have finished the step.
type Profiler struct {
	schedule Schedule
	ready    func(Window) error
	recorder *Recorder
	step     int // the one under way
	first    int // of the window
	began    time.Duration
	closed   bool
}

// Window is what happened in the recorded steps First to Last. Times are counted from the start of First. Spans that
// began earlier or had not ended after Last are left out.
type Window struct {
	First, Last int
	Trace
}

// NewProfiler starts a profiler at step 0. Step calls ready with each window when it ends. It is an error if the
// schedule has a negative number or no active step, or if ready is nil.
func NewProfiler(s Schedule, ready func(Window) error) (*Profiler, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	if ready == nil {
		return nil, errors.New("trace: a profiler needs a function that takes its windows")
	}
	p := &Profiler{schedule: s, ready: ready, recorder: New()}
	p.enter(Waiting)
	return p, nil
}

// Recorder returns the recorder for the run. The profiler pauses and resumes it.
func (p *Profiler) Recorder() *Recorder {
	if p == nil {
		return nil
	}
	return p.recorder
}

// Step marks the end of a step and the start of the next. It returns the error of the function that received a window,
// and an error after Close.
func (p *Profiler) Step() error {
	if p == nil {
		return nil
	}
	if p.closed {
		return errors.New("trace: Step of a profiler after Close")
	}
	state := p.schedule.State(p.step)
	var err error
	if state == Saving {
		err = p.hand(p.step)
	}
	p.step++
	p.enter(state)
	return err
}

// enter begins the next step; before is the state of the last one.
func (p *Profiler) enter(before State) {
	switch p.schedule.State(p.step) {
	case Waiting:
		p.recorder.Pause()
	case WarmingUp:
		p.recorder.Resume()
	default:
		if before != Recording {
			p.recorder.Take() // of the warm-up
			p.first, p.began = p.step, p.recorder.now()
			p.recorder.Resume()
		}
	}
}

func (p *Profiler) hand(last int) error {
	return p.ready(Window{p.first, last, p.recorder.Take().Shift(-p.began)})
}

// Close ends the profiler, and passes on an unfinished window if it has at least one complete step. It does nothing
// when called again.
func (p *Profiler) Close() error {
	if p == nil || p.closed {
		return nil
	}
	p.closed = true
	p.recorder.Pause()
	if state := p.schedule.State(p.step); (state == Recording || state == Saving) && p.step > p.first {
		return p.hand(p.step - 1)
	}
	return nil
}
