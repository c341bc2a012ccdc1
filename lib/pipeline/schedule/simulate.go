package schedule

import (
	"fmt"
	"slices"
)

// Span is an action with the time in which a rank does it.
type Span struct {
	Rank int
	Action
	Start, End float64
	// Version is that of the weights that a pass uses, or that an update makes: see [Schedule.Versions].
	Version int
}

// Timeline is when the ranks of a schedule do what at given costs, and what they hold meanwhile. Lists are by rank.
type Timeline struct {
	Schedule Schedule
	Spans    []Span // rank after rank, each in its order

	Start, End []float64 // of the rank's first and of its last action
	// Makespan is the end of the last action of all; the first starts at 0.
	Makespan float64
	// StepTime is the largest of the ranks' times from Start to End ("cost" of Qi et al. 2023, §5.3). Steps that follow each
	// other with no barrier between them, as no synchronous schedule needs one, can start every StepTime: each rank goes
	// on where it ends. For the named synchronous kinds at equal costs they can start no more often. Where costs differ
	// they may, since a rank that waits within this first step may start later in the next ones. Of an asynchronous
	// schedule it is the time of its micro-batches with the pipeline filled and drained once.
	StepTime float64
	// Bubble is the share of StepTime in which a rank is idle, on average over the ranks.
	Bubble float64
	Idle   []float64 // StepTime less the time in which the rank computes

	PeakActivations []int // see [Schedule.PeakActivations]
	// PeakMemory is the most that they take: Costs.Activation, of which Costs.Kept is left after InputGrad.
	PeakMemory []float64
	Memory     [][]Level // what they take as time goes on
}

// Simulate computes the timeline of a schedule. A rank does its actions in their order, each as soon as the rank is free
// and what the action needs is there: the end of what makes it, and the time of the link where another rank does. An
// update waits for the gradients of all ranks that have the stage. Sums of integers are exact.
//
// The errors are those of [Schedule.Check], and costs that are negative, not finite, or as many as no schedule's stages.
func (s Schedule) Simulate(c Costs) (Timeline, error) {
	versions, err := s.checked()
	if err != nil {
		return Timeline{}, err
	}
	n, err := newNetwork(s, c)
	if err != nil {
		return Timeline{}, err
	}
	clk := newClock(n)
	if !clk.play(n.orders) {
		return Timeline{}, fmt.Errorf("schedule: the ranks of %q wait for each other: change the order of their actions", s.Name)
	}
	return clk.timeline(s, c, versions), nil
}

// timeline collects what was played.
func (c *clock) timeline(s Schedule, costs Costs, versions [][]int) Timeline {
	t := Timeline{Schedule: s, PeakActivations: s.PeakActivations()}
	var busy []float64
	for r, order := range c.orders {
		sum := 0.0
		for k, i := range order {
			t.Spans = append(t.Spans, Span{Rank: r, Action: c.actions[i], Start: c.start[i], End: c.end[i], Version: versions[r][k]})
			sum += c.took[i]
		}
		busy = append(busy, sum)
		first, last := 0.0, 0.0
		if len(order) > 0 {
			first, last = c.start[order[0]], c.end[order[len(order)-1]]
		}
		t.Start, t.End = append(t.Start, first), append(t.End, last)
		t.Makespan, t.StepTime = max(t.Makespan, last), max(t.StepTime, last-first)
	}
	total := 0.0
	for _, b := range busy {
		t.Idle = append(t.Idle, t.StepTime-b)
		total += t.StepTime - b
	}
	if t.StepTime > 0 {
		t.Bubble = total / (t.StepTime * float64(len(busy)))
	}
	for r := range s.Ranks {
		h := newHolding(s.On(r), costs)
		levels := []Level{}
		for _, span := range t.Of(r) {
			h.start(span.Action)
			levels = addLevel(levels, span.Start, h.held)
			h.end(span.Action)
			levels = addLevel(levels, span.End, h.held)
		}
		t.PeakMemory = append(t.PeakMemory, h.most)
		t.Memory = append(t.Memory, levels)
	}
	return t
}

// Of returns the spans of a rank, in its order.
func (t Timeline) Of(rank int) []Span {
	from, _ := slices.BinarySearchFunc(t.Spans, rank, func(s Span, r int) int { return s.Rank - r })
	to, _ := slices.BinarySearchFunc(t.Spans, rank+1, func(s Span, r int) int { return s.Rank - r })
	return t.Spans[from:to]
}

// SimulateShares is Simulate with costs of a rank's whole share of the model, so that schedules with different numbers of
// stages a rank can be compared: costs are a list with a value for each of d equal parts of the model, or one for all,
// where d is the number of stages with one a rank. In a schedule of v·d stages each is a v-th of such a part, and takes a
// v-th of its time and memory. Where a stage is on several ranks they share its micro-batches, and v is 1.
func (s Schedule) SimulateShares(c Costs) (Timeline, error) {
	v := s.Chunks()
	t, err := s.Simulate(c.Spread(v))
	if err != nil || v == 1 {
		return t, err
	}
	// Dividing at the end keeps what is counted in integers exact until here.
	shares := func(lists ...[]float64) {
		for _, list := range lists {
			for i := range list {
				list[i] /= float64(v)
			}
		}
	}
	shares(t.Start, t.End, t.Idle, t.PeakMemory)
	t.Makespan /= float64(v)
	t.StepTime /= float64(v)
	for i := range t.Spans {
		t.Spans[i].Start /= float64(v)
		t.Spans[i].End /= float64(v)
	}
	for _, levels := range t.Memory {
		for i := range levels {
			levels[i].At /= float64(v)
			levels[i].Held /= float64(v)
		}
	}
	return t, nil
}

// Chunks is the number of pieces that a rank's share of the model is in: stages for each rank where each is on one rank.
func (s Schedule) Chunks() int {
	if len(s.Ranks) == 0 {
		return 1
	}
	return max(1, s.Stages/len(s.Ranks))
}
