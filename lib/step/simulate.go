package step

import (
	"cmp"
	"fmt"
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

// Activations counts the activations that a rank has saved for backward passes, in units of Costs.Activation. Call
// Start and End for each pass of the rank's list, in order.
type Activations struct {
	Held, Most       float64 // saved now, and the peak so far
	Count, MostCount int     // the same as a number of micro-batches, counted once per block

	costs Costs
	again map[[2]int]bool // blocks and micro-batches that are recomputed: their forward pass saves nothing
}

// NewActivations returns a counter for a rank's list.
func NewActivations(c Costs, list []Op) *Activations {
	s := &Activations{costs: c, again: map[[2]int]bool{}}
	for _, op := range list {
		if op.Kind == Recompute {
			s.again[[2]int{op.Block, op.Micro}] = true
		}
	}
	return s
}

// Start records that a pass starts.
func (s *Activations) Start(op Op) {
	if op.Kind == Recompute || op.Kind == Forward && !s.again[[2]int{op.Block, op.Micro}] {
		saved, _ := s.costs.Saved(op.Block)
		s.Held, s.Count = s.Held+saved, s.Count+1
		s.Most, s.MostCount = max(s.Most, s.Held), max(s.MostCount, s.Count)
	}
}

// End records that a pass has ended.
func (s *Activations) End(op Op) {
	saved, kept := s.costs.Saved(op.Block)
	switch op.Kind {
	case Backward:
		s.Held, s.Count = s.Held-saved, s.Count-1
	case InputGrad:
		s.Held -= saved - kept
	case WeightGrad:
		s.Held, s.Count = s.Held-kept, s.Count-1
	}
	if s.Count == 0 {
		s.Held = 0 // without rounding errors
	}
}

// PeakActivations returns, for each rank, the largest number of micro-batches whose activations it saves at a time,
// counted once per block. They are saved from the start of the forward pass, or of its recomputation, to the end of
// Backward or WeightGrad.
func (p *Plan) PeakActivations() []int {
	peaks := make([]int, len(p.Ranks))
	for r, list := range p.Ranks {
		s := NewActivations(Costs{}, list)
		for _, op := range list {
			if op.Kind.Pass() && op.Kind != Update {
				s.Start(op)
				s.End(op)
			}
		}
		peaks[r] = s.MostCount
	}
	return peaks
}

// Costs are the time that each operation takes and the memory that activations take, in any units. Each list has a
// value per block, or one for all blocks. The zero value means [Equal].
type Costs struct {
	Forward    []float64 // defaults to 1
	InputGrad  []float64 // defaults to 1
	WeightGrad []float64 // defaults to 1
	Backward   []float64 // defaults to InputGrad + WeightGrad
	Recompute  []float64 // defaults to Forward
	Update     []float64 // per unit; defaults to 0
	// Link is the latency between two ranks: of a message, or from the last rank that enters a Gather or Reduce to the
	// result. Several messages may be under way at a time. It defaults to 0.
	Link func(from, to int) float64
	// Transfer is the time that a Gather, Reduce, Store, Fetch or HostUpdate takes, and of a Send the time besides
	// Link. A stream runs one of them at a time. It defaults to 0.
	Transfer func(op Op) float64

	// Activation is the memory that a block saves for the backward pass of a micro-batch; it defaults to 1.
	Activation []float64
	// Kept is the fraction of it, from 0 to 1, that WeightGrad still needs after InputGrad; it defaults to 1.
	Kept []float64

	parts int // chunks that each value of a list is for: see Spread
}

// Equal returns the costs with which the papers count: 1 for Forward, InputGrad and WeightGrad, so 2 for Backward; 0
// for messages and updates; 1 for the activations of a block for a micro-batch.
func Equal() Costs {
	one := []float64{1}
	return Costs{Forward: one, InputGrad: one, WeightGrad: one, Activation: one, Kept: one}
}

// mostCost bounds a cost, so that sums are finite.
const mostCost = 1e100

// Check returns an error for a list whose length is neither 1 nor the number of blocks or units, and for values that
// are negative or not finite.
func (c Costs) Check(blocks, units int) error {
	for _, l := range []struct {
		name  string
		list  []float64
		count int
		most  float64
	}{{"Forward", c.Forward, blocks, mostCost}, {"InputGrad", c.InputGrad, blocks, mostCost},
		{"WeightGrad", c.WeightGrad, blocks, mostCost}, {"Backward", c.Backward, blocks, mostCost},
		{"Recompute", c.Recompute, blocks, mostCost}, {"Update", c.Update, units, mostCost},
		{"Activation", c.Activation, blocks, mostCost}, {"Kept", c.Kept, blocks, 1}} {
		if err := checkList("Costs."+l.name, l.list, l.count/max(1, c.parts), l.most); err != nil {
			return err
		}
	}
	return nil
}

// checkList checks a list with a value per block or unit, or one for all.
func checkList[T int64 | float64](name string, list []T, count int, most T) error {
	if n := len(list); n > 1 && n != count {
		return fmt.Errorf("step: %s has %d values for %d: give one for each, or one for all", name, n, count)
	}
	for _, v := range list {
		if !(v >= 0 && v <= most) {
			return fmt.Errorf("step: %s has the value %v: give one from 0 to %v", name, v, most)
		}
	}
	return nil
}

// of returns the value of a block or unit.
func of[T any](list []T, at int, otherwise T) T {
	switch len(list) {
	case 0:
		return otherwise
	case 1:
		return list[0]
	}
	return list[at]
}

func (c *Costs) of(list []float64, at int, otherwise float64) float64 {
	return of(list, at/max(1, c.parts), otherwise)
}

// Time returns the time that an operation takes. For the update of all units it is 0: the caller adds up the units.
func (c Costs) Time(op Op) float64 {
	switch op.Kind {
	case Forward:
		return c.of(c.Forward, op.Block, 1)
	case Recompute:
		return c.of(c.Recompute, op.Block, c.of(c.Forward, op.Block, 1))
	case InputGrad:
		return c.of(c.InputGrad, op.Block, 1)
	case WeightGrad:
		return c.of(c.WeightGrad, op.Block, 1)
	case Backward:
		return c.of(c.Backward, op.Block, c.of(c.InputGrad, op.Block, 1)+c.of(c.WeightGrad, op.Block, 1))
	case Update:
		if op.Unit < 0 {
			return 0
		}
		return c.of(c.Update, op.Unit, 0)
	case Gather, Reduce, Store, Fetch, HostUpdate, Send:
		if c.Transfer != nil {
			return c.Transfer(op)
		}
	}
	return 0
}

// Saved returns the memory that a block saves for a micro-batch, and what remains of it after InputGrad.
func (c Costs) Saved(block int) (saved, kept float64) {
	saved = c.of(c.Activation, block, 1)
	return saved, saved * c.of(c.Kept, block, 1)
}

// Between returns the latency of a message, 0 within a rank. Link must return a finite time, at least 0.
func (c Costs) Between(from, to int) (float64, error) {
	if c.Link == nil || from == to {
		return 0, nil
	}
	if v := c.Link(from, to); v >= 0 && v <= mostCost {
		return v, nil
	} else {
		return 0, fmt.Errorf("step: Costs.Link(%d, %d) is %v: let it be from 0 to %g", from, to, v, mostCost)
	}
}

// Spread returns the costs of a model whose blocks are cut into n chunks each, in units n times smaller: each chunk has
// the numbers of its block, and messages take n times as long. Divide results by n, as [Plan.SimulateShares] does.
func (c Costs) Spread(n int) Costs {
	c.parts = n * max(1, c.parts)
	if link := c.Link; link != nil {
		c.Link = func(from, to int) float64 { return link(from, to) * float64(n) }
	}
	return c
}
