package plan_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/lib/collective/plan"
)

// What each operation leaves, for two ranks; and that AllToAll draws its result.
func TestDraw(t *testing.T) {
	for op, want := range map[plan.Op]string{
		plan.Broadcast:     "rank 0  a0 rank 1  a0",
		plan.Reduce:        "rank 0  a0+b0 rank 1  b0",
		plan.AllReduce:     "rank 0  a0+b0 rank 1  a0+b0",
		plan.Gather:        "rank 0  a0  b1 rank 1  ·   b1",
		plan.AllGather:     "rank 0  a0  b1 rank 1  a0  b1",
		plan.Scatter:       "rank 0  a0  a1 rank 1  ·   a1",
		plan.ReduceScatter: "rank 0  a0+b0  a1+b1 rank 1  b0     a1+b1",
		plan.AllToAll:      "rank 0  a0  b0 rank 1  a1  b1",
	} {
		var b strings.Builder
		if err := make1(t, op, plan.Naive, 2).Draw(&b); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(b.String()), "\n")
		last := strings.TrimSpace(lines[len(lines)-2]) + " " + strings.TrimSpace(lines[len(lines)-1])
		if last != want {
			t.Errorf("%v ends with %q, want %q", op, last, want)
		}
	}
}

// Before a gather each rank has its own part, and after it the root has all.
func TestHeld(t *testing.T) {
	got, err := make1(t, plan.Gather, plan.Naive, 2).Held()
	if want := "[[[1 0] [0 1]] [[1 1] [0 1]]]"; err != nil || fmt.Sprint(got) != want {
		t.Errorf("%v, error %v, want %s", got, err, want)
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestDrawErrors(t *testing.T) {
	p := make1(t, plan.AllReduce, plan.Ring, 3)
	if err := p.Draw(full{}); err == nil || err.Error() != "disk full" {
		t.Errorf("a full disk: %v", err)
	}
	p.Steps = nil
	if err := p.Draw(full{}); err == nil || !strings.Contains(err.Error(), "steps of 0 ranks") {
		t.Errorf("a plan without steps: %v", err)
	}
	if _, err := p.Held(); err == nil {
		t.Error("what ranks hold by a plan without steps: no error")
	}
}
