package step

import (
	"cmp"
	"slices"
)

// Span is an operation with its start and end, in the units of Costs.
type Span struct {
	Rank int
	Op
	Start, End float64
	// Version is the version of the weights that a pass uses, or that an update makes: see [Plan.Versions].
	Version int
}

// Timeline is a simulated step: when each rank does what, and what it saves for backward passes. Lists are by rank.
type Timeline struct {
	Plan      *Plan
	Spans     []Span // passes, rank after rank, each in its order
	Transfers []Span // operations beside the passes, rank after rank, by [Op.Stream] and start

	Start, End []float64 // of the rank's first and last pass
	// Makespan is the end of the last pass of all ranks; the first starts at 0.
	Makespan float64
	// StepTime is the largest of the ranks' times from Start to End ("cost" of Qi et al. 2023, §5.3). Steps that follow
	// each other without a barrier can start every StepTime, since each rank continues where it ends. For the named
	// synchronous schedules at equal costs that is the best rate; at other costs later steps may be faster. For an
	// asynchronous schedule it is the time of its micro-batches with the pipeline filled and drained once.
	StepTime float64
	// Bubble is the idle fraction of StepTime, averaged over the ranks.
	Bubble float64
	Idle   []float64 // StepTime minus the time in which the rank computes

	PeakActivations []int // see [Plan.PeakActivations]
	// PeakMemory is the peak of saved activations: Costs.Activation each, of which Costs.Kept remains after InputGrad.
	PeakMemory []float64
	Memory     [][]Level // saved activations over time
}

// Level is the amount of saved activations from a time on.
type Level struct{ At, Held float64 }

// Simulate computes the timeline of a plan. A rank runs its passes in order, each as soon as the rank is free and the
// values that it needs are there. Operations beside the passes begin when the passes before them have ended, those of a
// stream one after another. A plan without messages is completed by [Plan.WithMessages] first. Sums of integer costs
// are exact.
//
// Errors are those of [Plan.Check] and [Costs.Check].
func (p *Plan) Simulate(costs Costs) (Timeline, error) { return p.simulate(costs, 1) }

// SimulateShares simulates with costs of equal parts of the model, one per rank, so that schedules with different
// numbers of blocks per rank can be compared. Lists of Costs have a value for each of these parts, or one for all. A
// plan with v blocks per rank takes a v-th of the time and memory for each block. If blocks are on several ranks, which
// then share the micro-batches, v is 1.
func (p *Plan) SimulateShares(c Costs) (Timeline, error) {
	v := p.Chunks()
	return p.simulate(c.Spread(v), float64(v))
}

// Chunks is the number of blocks per rank, if each is on one rank; at least 1.
func (p *Plan) Chunks() int { return max(1, len(p.Blocks)/max(1, len(p.Ranks))) }

// simulate divides its results by a number at the end, so that sums of integers are exact.
func (p *Plan) simulate(costs Costs, by float64) (Timeline, error) {
	checked, err := p.checked()
	if err != nil {
		return Timeline{}, err
	}
	if err := costs.Check(len(p.Blocks), len(p.Units)); err != nil {
		return Timeline{}, err
	}
	c, err := checked.play(costs)
	if err != nil {
		return Timeline{}, err
	}
	t := Timeline{Plan: p}
	var busy []float64
	last, longest := 0.0, 0.0
	for r, list := range c.Ranks {
		var passes, transfers []Span
		sum, start, end := 0.0, 0.0, 0.0
		h, levels := NewActivations(costs, list), []Level{}
		level := func(at float64) { // the last one at a time counts
			if n := len(levels); n > 0 && levels[n-1].At == at/by {
				levels = levels[:n-1]
			}
			if n := len(levels); n == 0 || levels[n-1].Held != h.Held/by {
				levels = append(levels, Level{at / by, h.Held / by})
			}
		}
		for i, op := range list {
			at := c.times[r][i]
			s := Span{Rank: r, Op: op, Start: at.start / by, End: at.end / by}
			if op.beside() {
				transfers = append(transfers, s)
			}
			if !op.Kind.Pass() {
				continue
			}
			if len(passes) == 0 {
				start = at.start
			}
			end, sum, passes = at.end, sum+c.took(int32(r), op), append(passes, s)
			h.Start(op)
			level(at.start)
			h.End(op)
			level(at.end)
		}
		k := 0
		for i, op := range p.Ranks[r] { // which may be without messages, and has the same passes
			if op.Kind.Pass() {
				passes[k].Version = checked.versions[r][i]
				k++
			}
		}
		slices.SortStableFunc(transfers, func(a, b Span) int { return cmp.Compare(a.Stream(), b.Stream()) })
		t.Spans, t.Transfers = append(t.Spans, passes...), append(t.Transfers, transfers...)
		t.Start, t.End, busy = append(t.Start, start/by), append(t.End, end/by), append(busy, sum)
		last, longest = max(last, end), max(longest, end-start)
		t.PeakActivations = append(t.PeakActivations, h.MostCount)
		t.PeakMemory, t.Memory = append(t.PeakMemory, h.Most/by), append(t.Memory, levels)
	}
	idle := 0.0
	for _, b := range busy {
		t.Idle, idle = append(t.Idle, (longest-b)/by), idle+longest-b
	}
	if t.Makespan, t.StepTime = last/by, longest/by; longest > 0 {
		t.Bubble = idle / (longest * float64(len(busy)))
	}
	return t, nil
}

// Of returns the spans of a rank's passes, in its order.
func (t Timeline) Of(rank int) []Span { return spansOf(t.Spans, rank) }

func spansOf(spans []Span, rank int) []Span {
	from, _ := slices.BinarySearchFunc(spans, rank, func(s Span, r int) int { return s.Rank - r })
	to, _ := slices.BinarySearchFunc(spans, rank+1, func(s Span, r int) int { return s.Rank - r })
	return spans[from:to]
}
