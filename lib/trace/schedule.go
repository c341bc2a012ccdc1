package trace

import "fmt"

// Schedule says which steps of a long run are recorded, as torch.profiler.schedule does: it waits, warms up, records,
// and repeats. Warm-up steps are recorded and discarded, because the first steps include one-time costs.
type Schedule struct {
	Wait   int // steps not recorded
	WarmUp int // following steps, recorded and discarded
	Active int // following steps, recorded: at least 1
	Repeat int // the number of cycles; 0 repeats forever
}

// State is what a [Schedule] does with a step.
type State int

const (
	Waiting   State = iota // the step is not recorded
	WarmingUp              // recorded and discarded
	Recording              // recorded
	Saving                 // recorded, and the last of its window
)

// String returns the name of the state.
func (s State) String() string {
	if s < Waiting || s > Saving {
		return fmt.Sprintf("State(%d)", int(s))
	}
	return [...]string{"waiting", "warming up", "recording", "saving"}[s]
}

// maxSteps ensures that the sum of a schedule's steps fits into an int.
const maxSteps = 1 << 29

func (s Schedule) check() error {
	for _, n := range []int{s.Wait, s.WarmUp, s.Active, s.Repeat} {
		if n < 0 || n > maxSteps {
			return fmt.Errorf("trace: a schedule of %+v has a number outside 0 to %d", s, maxSteps)
		}
	}
	if s.Active == 0 {
		return fmt.Errorf("trace: a schedule of %+v records nothing: set Active to 1 or more", s)
	}
	return nil
}

// State returns what the schedule does with a step, counted from 0. A schedule that [NewProfiler] rejects always waits.
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
