package trace_test

import (
	"testing"

	"github.com/shardbook/shardbook/lib/trace"
)

// State against a list of all states, for every small schedule.
func TestStates(t *testing.T) {
	for n := range 3 * 3 * 3 * 3 {
		s := trace.Schedule{Wait: n % 3, WarmUp: n / 3 % 3, Active: 1 + n/9%3, Repeat: n / 27}
		var states []trace.State
		for round := 0; round < s.Repeat || s.Repeat == 0 && round < 5; round++ {
			for range s.Wait {
				states = append(states, trace.Waiting)
			}
			for range s.WarmUp {
				states = append(states, trace.WarmingUp)
			}
			for range s.Active {
				states = append(states, trace.Recording)
			}
			states[len(states)-1] = trace.Saving
		}
		if s.Repeat > 0 {
			states = append(states, trace.Waiting, trace.Waiting, trace.Waiting)
		}
		for step, want := range states {
			if got := s.State(step); got != want {
				t.Errorf("%+v: step %d is %v, want %v", s, step, got, want)
			}
		}
		if got := s.State(-1); got != trace.Waiting {
			t.Errorf("%+v: step -1 is %v", s, got)
		}
	}
	for _, s := range []trace.Schedule{{}, {Wait: -1, Active: 1}, {Active: 1, Repeat: -1}, {Active: 1 << 60}} {
		if got := s.State(5); got != trace.Waiting {
			t.Errorf("%+v: step 5 is %v", s, got)
		}
	}
	if got := trace.State(7).String(); got != "State(7)" {
		t.Error(got)
	}
}
