package trace

import (
	"errors"
	"time"
)

// Profiler records the steps of a run that a [Schedule] chooses, and hands each finished window of them to a function.
// What runs in the steps records with [Profiler.Recorder]; the loop says when a step is done:
//
//	for range steps {
//		...
//		err := p.Step()
//	}
//	err := p.Close()
//
// A nil Profiler is one that is off. Step and Close are for one goroutine: of several ranks one calls them, when all
// are done with the step.
type Profiler struct {
	schedule Schedule
	ready    func(Window) error
	recorder *Recorder
	step     int // the one under way
	first    int // of the window
	began    time.Duration
	closed   bool
}

// Window is what happened in the recorded steps from First to Last. Times count from where First began; a span that
// began before that, or had not ended after Last, is not in it.
type Window struct {
	First, Last int
	Trace
}

// NewProfiler starts a profiler at step 0. Each window goes to ready within the call of Step that ends it. It is an
// error if the schedule has a negative number or no active step, or if ready is nil.
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

// Recorder is what the run records with. The profiler pauses and resumes it.
func (p *Profiler) Recorder() *Recorder {
	if p == nil {
		return nil
	}
	return p.recorder
}

// Step says that a step is done and the next begins. Its error is that of the function that took a window, or that the
// profiler is closed.
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

// enter begins the step after one of another state.
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

// Close ends the profiler, and hands over a window that the end of the run cut short, if it has a whole step or more.
// It does nothing when called again.
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
