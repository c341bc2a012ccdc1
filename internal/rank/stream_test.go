package rank_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/rank"
	"github.com/shardbook/shardbook/internal/systest"
)

// TestStream does tasks in their order, in the background, whatever number of them may wait.
func TestStream(t *testing.T) {
	defer systest.NoLeaks(t)()
	const tasks = 100
	for _, room := range []int{0, 1, tasks} {
		s := rank.NewStream(room)
		begin := make(chan struct{})
		var order []int // the race detector sees whether tasks overlap
		did := make([]bool, tasks)
		var done []<-chan struct{}
		done = append(done, s.Add(func() error { <-begin; return nil })) // not while Add is called
		select {
		case <-done[0]:
			t.Errorf("room for %d: done before it can be", room)
		default:
		}
		close(begin)
		for i := range tasks {
			done = append(done, s.Add(func() error { order, did[i] = append(order, i), true; return nil }))
		}
		if <-done[tasks/2]; !did[tasks/2-1] { // what the task wrote can be read
			t.Errorf("room for %d: a task says that it is done, and is not", room)
		}
		if err := s.Finish(); err != nil {
			t.Error(err)
		}
		if len(order) != tasks || !slices.IsSorted(order) {
			t.Errorf("room for %d: done in the order %v", room, order)
		}
		for _, d := range done {
			<-d
		}
	}
}

// TestStreamFails has a task fail or panic: what follows is not done, but nobody waits for it for ever.
func TestStreamFails(t *testing.T) {
	defer systest.NoLeaks(t)()
	broken := errors.New("broken")
	for name, fails := range map[string]func() error{
		"broken":      func() error { return broken },
		"panic: boom": func() error { panic("boom") },
		"index out":   func() error { var none []int; none[len(none)]++; return nil },
	} {
		s := rank.NewStream(4)
		done, late := 0, 0
		var all []<-chan struct{}
		for _, do := range []func() error{
			func() error { done++; return nil },
			fails,
			func() error { late++; return nil },
			func() error { return errors.New("another error") },
		} {
			all = append(all, s.Add(do))
		}
		for _, d := range all {
			<-d
		}
		if err := s.Finish(); err == nil || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "another") {
			t.Errorf("%s: %v", name, err)
		} else if name == "broken" && !errors.Is(err, broken) {
			t.Errorf("not the task's own error: %v", err)
		}
		if done != 1 || late != 0 {
			t.Errorf("%s: %d before it and %d after it were done, want 1 and 0", name, done, late)
		}
	}
	if err := rank.NewStream(0).Finish(); err != nil {
		t.Errorf("of no tasks: %v", err)
	}
}
