package plan_test

import (
	"strings"
	"testing"

	"github.com/shardbook/shardbook/lib/collective/plan"
)

// TestWay asks algorithms and plans of one's own for the plans of operations.
func TestWay(t *testing.T) {
	ring := make1(t, plan.AllReduce, plan.Ring, 3)
	around, err := plan.Parse(ownFirst)
	if err != nil {
		t.Fatal(err)
	}
	idle := &plan.Plan{Op: plan.AllReduce, Ranks: 3, Chunks: 1, Slots: 1, Steps: make([][]plan.Step, 3)}
	for want, way := range map[string]plan.Way{
		"":                    ring,
		"has no algorithm":    plan.Tree,
		"is for 4 ranks, and": make1(t, plan.AllReduce, plan.Ring, 4),
		"is of broadcast":     make1(t, plan.Broadcast, plan.Ring, 3),
		"rank 0 ends with":    idle,
		"in different orders": around,
	} {
		plans, err := way.For(3, plan.AllReduce, plan.AllGather)
		switch {
		case want == "" && (err != nil || len(plans) != 1 || plans[0] != ring):
			t.Errorf("%v, error %v, want the plan itself", plans, err)
		case want != "" && (err == nil || plans != nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%v, error %v, want %q", plans, err, want)
		}
	}
}
