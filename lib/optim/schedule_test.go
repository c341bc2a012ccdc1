package optim_test

import (
	"math"
	"testing"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"gonum.org/v1/gonum/floats/scalar"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/optim"
)

var schedules = []optim.Schedule{
	optim.Constant(0.3),
	optim.Warmup{Steps: 3},
	optim.Warmup{Steps: 1, Then: optim.Linear{Steps: 4}},
	optim.Warmup{Steps: 3, Then: optim.Cosine{Steps: 9, Floor: 0.1}},
	optim.Warmup{Steps: 2, Then: optim.Warmup{Steps: 4, Then: optim.InverseSqrt{Steps: 3}}},
	optim.Cosine{Steps: 7},
	optim.Cosine{Steps: 1, Floor: 1},
	optim.Linear{Steps: 10, Floor: 0.25},
	optim.InverseSqrt{Steps: 4},
	optim.Noam{Width: 512, Warmup: 5},
}

// In the graph a schedule equals that on the host.
func TestScheduleInGraph(t *testing.T) {
	backend := devicetest.PureGo()
	exec, err := graph.NewExec(backend, func(step *graph.Node) []*graph.Node {
		rates := make([]*graph.Node, len(schedules))
		for i, s := range schedules {
			rates[i] = s.Rate(step)
		}
		return rates
	})
	if err != nil {
		t.Fatal(err)
	}
	defer exec.Finalize()
	for step := 1; step <= 16; step++ {
		for _, number := range []any{int32(step), float32(step)} {
			rates, err := exec.Call(number)
			if err != nil {
				t.Fatal(err)
			}
			for i, s := range schedules {
				if got := tensors.ToScalar[float64](rates[i]); !scalar.EqualWithinAbs(got, s.At(step), 1e-12) {
					t.Errorf("%T%+v at step %d: %g in the graph, %g on the host", s, s, step, got, s.At(step))
				}
			}
		}
	}
}

func TestScheduleAt(t *testing.T) {
	noam := func(step, warmup float64) float64 { // Vaswani et al. 2017, equation 3
		return math.Pow(512, -0.5) * math.Min(math.Pow(step, -0.5), step*math.Pow(warmup, -1.5))
	}
	for _, c := range []struct {
		schedule optim.Schedule
		want     map[int]float64
	}{
		{optim.Constant(0.3), map[int]float64{1: 0.3, 1000: 0.3}},
		{optim.Warmup{Steps: 4}, map[int]float64{1: 0.25, 2: 0.5, 4: 1, 5: 1}},
		{optim.Warmup{Steps: 4, Then: optim.Linear{Steps: 4}}, map[int]float64{4: 1, 5: 1, 6: 0.75, 9: 0, 99: 0}},
		{optim.Cosine{Steps: 6}, map[int]float64{1: 1, 3: 0.75, 4: 0.5, 5: 0.25, 7: 0, 8: 0}},
		{optim.Cosine{Steps: 6, Floor: 0.2}, map[int]float64{1: 1, 3: 0.8, 4: 0.6, 7: 0.2, 8: 0.2}},
		{optim.Linear{Steps: 4, Floor: 0.2}, map[int]float64{1: 1, 2: 0.8, 5: 0.2, 6: 0.2}},
		{optim.InverseSqrt{Steps: 100}, map[int]float64{1: 1, 100: 1, 400: 0.5, 10000: 0.1}},
		{optim.Noam{Width: 512, Warmup: 4000}, map[int]float64{1: noam(1, 4000), 4000: noam(4000, 4000),
			9000: noam(9000, 4000)}},
	} {
		for step, want := range c.want {
			if got := c.schedule.At(step); !scalar.EqualWithinAbs(got, want, 1e-12) {
				t.Errorf("%T%+v at step %d: %g, want %g", c.schedule, c.schedule, step, got, want)
			}
		}
	}
}

func TestScheduleValidate(t *testing.T) {
	for _, s := range schedules {
		refused(t, s, s.Validate(), "")
	}
	for _, c := range []struct {
		schedule optim.Schedule
		want     string
	}{
		{optim.Constant(-1), "Constant is -1"},
		{optim.Constant(math.NaN()), "Constant is NaN"},
		{optim.Warmup{}, "Warmup.Steps is 0: set it to at least 1"},
		{optim.Warmup{Steps: 1, Then: optim.Linear{}}, "Linear.Steps is 0"},
		{optim.Cosine{Steps: -3}, "Cosine.Steps is -3"},
		{optim.Cosine{Steps: 3, Floor: 1.5}, "Cosine.Floor is 1.5: set it to 0 to 1"},
		{optim.Linear{Steps: 3, Floor: math.NaN()}, "Linear.Floor is NaN"},
		{optim.InverseSqrt{}, "InverseSqrt.Steps is 0"},
		{optim.Noam{Warmup: 1}, "Noam.Width is 0"},
		{optim.Noam{Width: 1}, "Noam.Warmup is 0"},
	} {
		refused(t, c.schedule, c.schedule.Validate(), c.want)
	}
}
