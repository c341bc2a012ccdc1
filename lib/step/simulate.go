package step

import (
	"cmp"
	"slices"
)

// Span is an operation with the time in which a rank does it.
type Span struct {
	Rank int
	Op
	Start, End float64
	// Version is that of the weights that a pass uses, or that an update makes: see [Plan.Versions].
	Version int
}

// Timeline is when the ranks of a plan do what at given costs, and what they save meanwhile. Lists are by rank.
type Timeline struct {
	Plan      *Plan
	Spans     []Span // of the passes, rank after rank, each in its order
	Transfers []Span // of what goes on beside the passes, rank after rank, those of a rank by [Op.Stream] and start

	Start, End []float64 // of the rank's first and of its last pass
	// Makespan is the end of the last pass of all; the first starts at 0.
	Makespan float64
	// StepTime is the largest of the ranks' times from Start to End ("cost" of Qi et al. 2023, §5.3). Steps that follow
	// each other with no barrier between them, as no synchronous schedule needs one, can start every StepTime: each
	// rank goes on where it ends. For the named synchronous kinds at equal costs they can start no more often. Where
	// costs differ they may, since a rank that waits within this first step may start later in the next ones. Of an
	// asynchronous schedule it is the time of its micro-batches with the pipeline filled and drained once.
	StepTime float64
	// Bubble is the share of StepTime in which a rank is idle, on average over the ranks.
	Bubble float64
	Idle   []float64 // StepTime less the time in which the rank computes

	PeakActivations []int // see [Plan.PeakActivations]
	// PeakMemory is the most that these take: Costs.Activation, of which Costs.Kept is left after InputGrad.
	PeakMemory []float64
	Memory     [][]Level // what they take as time goes on
}

// Level is what a rank holds from a time on.
type Level struct{ At, Held float64 }

// Simulate computes the timeline of a plan. A rank does its passes in their order, each as soon as the rank is free and
// what it needs is there; what goes on beside them begins when the passes before it have ended, those of a stream one
// after another. A plan with no messages is that of [Plan.WithMessages]. Sums of integers are exact.
//
// The errors are those of [Plan.Check], and costs that are negative, not finite, or as many as no plan's blocks.
func (p *Plan) Simulate(costs Costs) (Timeline, error) { return p.simulate(costs, 1) }

// SimulateShares is Simulate with costs of a rank's whole share of the model, so that schedules with different numbers
// of blocks a rank can be compared: costs are a list with a value for each of d equal parts of the model, or one for
// all, where d is the number of blocks with one a rank. In a plan of v·d blocks each is a v-th of such a part, and
// takes a v-th of its time and memory. Where a block is on several ranks they share its micro-batches, and v is 1.
func (p *Plan) SimulateShares(c Costs) (Timeline, error) {
	v := p.Chunks()
	return p.simulate(c.Spread(v), float64(v))
}

// Chunks is the number of pieces that a rank's share of the model is in: blocks for each rank where each is on one
// rank.
func (p *Plan) Chunks() int { return max(1, len(p.Blocks)/max(1, len(p.Ranks))) }

// simulate divides all that it counts by a number, at the end, so that sums of integers are exact.
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
		level := func(at float64) { // of several at one time the last stays
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
		for i, op := range p.Ranks[r] { // without messages it has the same passes
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
