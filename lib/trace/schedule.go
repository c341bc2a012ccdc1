package trace

import "fmt"

// Schedule says which steps of a long run are recorded: it waits, warms up and records, and begins again, as
// torch.profiler.schedule does. The first steps after a wait are recorded and thrown away, because they pay for the
// start of recording and for what the run does once.
type Schedule struct {
	Wait   int // steps not recorded
	WarmUp int // steps after them that are recorded and thrown away
	Active int // steps after them that are recorded and kept: at least 1
	Repeat int // how often that happens; 0 is for ever
}

// State is what a [Schedule] does with a step.
type State int

const (
	Waiting   State = iota // the step is not recorded
	WarmingUp              // recorded and thrown away
	Recording              // recorded
	Saving                 // recorded, and the last of its window
)

// String is the state in words.
func (s State) String() string {
	if s < Waiting || s > Saving {
		return fmt.Sprintf("State(%d)", int(s))
	}
	return [...]string{"waiting", "warming up", "recording", "saving"}[s]
}

// maxSteps keeps the sum of a schedule's steps within an int.
const maxSteps = 1 << 29

func (s Schedule) check() error {
	for _, n := range []int{s.Wait, s.WarmUp, s.Active, s.Repeat} {
		if n < 0 || n > maxSteps {
			return fmt.Errorf("trace: a schedule of %+v has a number outside 0 to %d", s, maxSteps)
		}
	}
	if s.Active == 0 {
		return fmt.Errorf("trace: a schedule of %+v records nothing: let Active be 1 or more", s)
	}
	return nil
}

// State returns what the schedule does with a step. Steps count from 0. A schedule that [NewProfiler] refuses waits for
// ever.
func (s Schedule) State(step int) State {
	if s.check() != nil || step < 0 {
		return Waiting
	}
	period := s.Wait + s.WarmUp + s.Active
	at := step % period
	switch {
	case s.Repeat > 0 && step/period >= s.Repeat, at < s.Wait:
		return Waiting
	case at < s.Wait+s.WarmUp:
		return WarmingUp
	case at < period-1:
		return Recording
	}
	return Saving
}
