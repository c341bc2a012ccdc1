package draw_test

import (
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/collective/plan"
	"github.com/shardbook/shardbook/lib/collective/plan/draw"
)

// TestCharts draws every algorithm: none of its charts is in error.
func TestCharts(t *testing.T) {
	wire := plan.Uniform(plan.Link{Latency: 1000, Bandwidth: 1e9})
	for _, op := range plan.Ops() {
		for _, algorithm := range plan.Algorithms(op) {
			for _, ranks := range []int{1, 2, 5} {
				p, err := plan.New(op, algorithm, ranks)
				must.Do(t, err)
				charts, err := draw.Rounds(p)
				if err != nil || len(charts) != p.Rounds+1 {
					t.Errorf("%v by %v, %d ranks: %d charts of %d rounds, error %v", op, algorithm, ranks, len(charts),
						p.Rounds, err)
				}
				traffic, err := p.Count(100, 4)
				must.Do(t, err)
				charts = append(charts, draw.Messages(p), draw.Traffic(traffic, "bytes"))
				if ranks > 1 {
					line := must.Get(p.Cost(wire, 100, 4))(t)
					charts = append(charts, draw.Timeline(line))
				}
				for _, c := range charts {
					if err := c.Err(); err != nil {
						t.Errorf("%v by %v, %d ranks: %v", op, algorithm, ranks, err)
					}
				}
			}
		}
	}
}

// Before a gather each rank has its own part, and after it the root has all.
func TestRounds(t *testing.T) {
	p := must.Get(plan.New(plan.Gather, plan.Naive, 2))(t)
	charts := must.Get(draw.Rounds(p))(t)
	for i, want := range []string{"rank 0  1  0\nrank 1  0  1", "rank 0  1  1\nrank 1  0  1"} {
		if text := charts[i].Text(); !strings.Contains(text, want) {
			t.Errorf("chart %d is\n%swant\n%s", i, text, want)
		}
	}
	p.Steps = nil
	if _, err := draw.Rounds(p); err == nil {
		t.Error("a plan without steps: no error")
	}
}
