package step

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// randomCosts are integers for each stage, some of them 0, and quarters as fractions after InputGrad, so that all sums
// are exact.
func randomCosts(random *rand.Rand, stages int) Costs {
	list := func(most int, unit float64) (values []float64) {
		for range stages {
			values = append(values, unit*float64(random.IntN(most+1)))
		}
		return values
	}
	c := Costs{Forward: list(5, 1), InputGrad: list(5, 1), WeightGrad: list(5, 1), Update: list(3, 1),
		Activation: list(6, 1), Kept: list(4, 0.25)}
	if random.IntN(2) == 0 {
		c.Backward = list(9, 1)
	}
	if salt := random.IntN(4); salt > 0 {
		c.Link = func(from, to int) float64 { return float64((salt*from + 3*to) % 5) }
	}
	return c
}

// dumbMemory finds a rank's peak by looking at the start of each pass.
func dumbMemory(p *Plan, c Costs, r int) (count int, memory float64) {
	for i := range p.Ranks[r] {
		held := map[[2]int]float64{}
		for j, a := range p.Ranks[r][:i+1] {
			same := func(b Op) bool { return b.Kind == Recompute && b.Block == a.Block && b.Micro == a.Micro }
			key, size := [2]int{a.Block, a.Micro}, of(c.Activation, a.Block, 1)
			switch {
			case a.Kind == Recompute, a.Kind == Forward && !slices.ContainsFunc(p.Ranks[r], same):
				held[key] = size
			case j == i: // has not ended
			case a.Kind == InputGrad:
				held[key] = size * of(c.Kept, a.Block, 1)
			case a.Kind == Backward || a.Kind == WeightGrad:
				delete(held, key)
			}
		}
		sum := 0.0
		for _, size := range held {
			sum += size
		}
		count, memory = max(count, len(held)), max(memory, sum)
	}
	return count, memory
}

// TestSimulateRandom compares random plans at random costs, with their messages or without, with the second checker's
// clock, exactly.
func TestSimulateRandom(t *testing.T) {
	random, paired := rand.New(rand.NewPCG(11, 12)), 0
	for n := range 1500 {
		p := randomPlan(random)
		if n%3 == 0 {
			p = randomSchedule(random)
		}
		paired += pairUp(random, p)
		c := randomCosts(random, len(p.Blocks))
		salt := random.IntN(5)
		c.Transfer = func(op Op) float64 { return float64((int(op.Kind) + salt*op.Unit + op.Block) % 4) }
		timeline := simulated(t, p, c)
		if q, err := p.WithMessages(); err == nil {
			p = q
		}
		d := &dumb{Plan: p, costs: c}
		if !d.play() {
			t.Fatalf("%vthe second checker refuses it", p)
		}
		makespan, step, busy := 0.0, 0.0, 0.0
		for r, list := range p.Ranks {
			passes := timeline.Of(r)
			if n := len(passes); n > 0 {
				makespan, step = max(makespan, passes[n-1].End), max(step, passes[n-1].End-passes[0].Start)
			}
			for i, op := range list {
				if d.r = r; op.Kind.Pass() {
					if s := passes[0]; s.Op != op || s.Rank != r || s.End != d.ends[r][i] ||
						s.Start != s.End-d.takes(op) {
						t.Fatalf("%vrank %d, position %d: %+v, want the end %v", p, r, i, s, d.ends[r][i])
					}
					busy += d.takes(op)
					passes = passes[1:]
				} else if op.beside() && op.Kind != Send {
					at := slices.IndexFunc(timeline.Transfers,
						func(s Span) bool { return s.Rank == r && s.Op == op && s.End == d.ends[r][i] })
					if at < 0 {
						t.Fatalf("%vrank %d, position %d: %v does not end at %v: %+v", p, r, i, p.Text(op),
							d.ends[r][i], timeline.Transfers)
					}
				}
			}
			count, memory := dumbMemory(p, c, r)
			most := 0.0
			for _, l := range timeline.Memory[r] {
				most = max(most, l.Held)
			}
			if timeline.PeakActivations[r] != count || timeline.PeakMemory[r] != memory || most > memory ||
				len(passes) > 0 {
				t.Fatalf("%v: rank %d holds %d and %v, at most %v over time; want %d and %v", p, r,
					timeline.PeakActivations[r], timeline.PeakMemory[r], most, count, memory)
			}
		}
		bubble := 0.0
		if step > 0 {
			bubble = 1 - busy/step/float64(len(p.Ranks))
		}
		if timeline.Makespan != makespan || timeline.StepTime != step || math.Abs(timeline.Bubble-bubble) > 1e-12 {
			t.Errorf("%v: makespan %v, step %v, bubble %v; want %v, %v, %v", p, timeline.Makespan, timeline.StepTime,
				timeline.Bubble, makespan, step, bubble)
		}
	}
	if paired < 100 {
		t.Errorf("%d pairs: the test needs more", paired)
	}
}

// TestSimulateErrors checks which costs are refused, and the reasons.
func TestSimulateErrors(t *testing.T) {
	good, bad := parsed(t, small), parsed(t, small)
	slices.Reverse(bad.Ranks[1])
	for _, test := range []struct {
		p    *Plan
		c    Costs
		want string
	}{
		{bad, Equal(), "step"},
		{&Plan{}, Equal(), "step"},
		{good, Costs{Forward: []float64{1, 2, 3}}, "Costs.Forward has 3 values for 2"},
		{good, Costs{Backward: []float64{-1}}, "Costs.Backward has the value -1"},
		{good, Costs{Update: []float64{math.NaN()}}, "Costs.Update has the value NaN"},
		{good, Costs{Activation: []float64{math.Inf(1)}}, "Costs.Activation has the value +Inf"},
		{good, Costs{Kept: []float64{1.5}}, "Costs.Kept has the value 1.5: give one from 0 to 1"},
		{good, Costs{Link: func(int, int) float64 { return -1 }}, "Costs.Link(0, 1) is -1"},
	} {
		if _, err := test.p.Simulate(test.c); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("got error %v, want %q", err, test.want)
		}
	}
}

// TestSimulateZero has passes that take no time, and a rank with nothing to do.
func TestSimulateZero(t *testing.T) {
	s := parsed(t, "schedule gpipe\nrank 0: 0F0 0F1 0B0 0B1 0U1")
	none := []float64{0}
	timeline := simulated(t, s, Costs{Forward: none, Backward: none})
	if timeline.StepTime != 0 || timeline.Bubble != 0 || timeline.PeakMemory[0] != 2 || fmt.Sprint(timeline) == "" {
		t.Errorf("%+v", timeline)
	}
}

func simulated(t *testing.T, p *Plan, c Costs) Timeline {
	t.Helper()
	timeline, err := p.Simulate(c)
	if err != nil {
		t.Fatalf("%v%v", p, err)
	}
	return timeline
}

// dumb is a second checker, which only says yes or no. It runs the lists, operation by operation, in whatever order
// they allow, on values that say what is in them.
type dumb struct {
	*Plan
	r, replicas int
	at          []int                    // of each rank
	here        []map[Value]*item        // by rank, what the list has by now, be it made or under way
	queues      []map[string][]*transfer // of each rank, what is under way
	began       []map[Op]*transfer
	state       []map[int]*dumbUnit // by rank and unit
	shards      []map[Value]bool    // activations that are freed
	first       map[int]int         // by micro-batch, the version that block 0 uses

	costs      Costs
	took, over float64              // of the pass that is tried: its time, and when it is over
	now        []float64            // of each rank
	free       []map[string]float64 // of each rank and stream
	ends       []map[int]float64    // of each rank and position
}

// item is a value.
type item struct {
	ready, used bool
	by          Kind // that made it
	since       float64
	grads       map[gradient]int
}

// gradient is what one pass adds.
type gradient struct{ rank, block, micro int }

type dumbUnit struct {
	updated, stored         int
	whole, old, away, fresh bool
	next                    map[int]int // of each block
}

type transfer struct {
	op         Op
	rank       int
	from, to   *item
	old        *item // of a reduce, what is reduced before
	needs      []*item
	ended      bool
	at         int
	start, end float64
}

func dumbValid(p *Plan) bool { return dumbPasses(p) && (&dumb{Plan: p}).play() }

// refused is what the second checker panics with.
type refused struct{}

func refuse(wrong bool) {
	if wrong {
		panic(refused{})
	}
}

// play carries the lists out, and notes when each operation ends.
func (d *dumb) play() (ok bool) {
	defer func() {
		switch thrown := recover().(type) {
		case nil, refused:
		default:
			panic(thrown)
		}
	}()
	p := d.Plan
	d.at, d.now = make([]int, len(p.Ranks)), make([]float64, len(p.Ranks))
	for _, list := range p.Ranks {
		for _, op := range list {
			if op.Kind == Forward && op.Block == 0 && op.Micro == 0 {
				d.replicas++
			}
		}
	}
	d.first = map[int]int{}
	for r := range p.Ranks {
		d.here = append(d.here, map[Value]*item{})
		d.queues = append(d.queues, map[string][]*transfer{})
		d.began = append(d.began, map[Op]*transfer{})
		d.shards = append(d.shards, map[Value]bool{})
		d.free, d.ends = append(d.free, map[string]float64{}), append(d.ends, map[int]float64{})
		d.state = append(d.state, map[int]*dumbUnit{})
		for _, u := range p.UnitsOn(r) {
			d.state[r][u] = &dumbUnit{next: map[int]int{}}
			gathers := Op{Kind: Free}
			for _, op := range p.Ranks[r] {
				if (op.Kind == Gather || op.Kind == Free) && op.What == Parameters && op.Unit == u {
					gathers = op
				}
			}
			if p.Units[u].Shard != "" && (gathers.Kind == Gather || gathers == Op{Kind: Free}) {
				d.here[r][Value{Held: Full, Unit: u}] = &item{ready: true}
				d.state[r][u].whole = true
			}
			for _, op := range p.Ranks[r] {
				if (op.Kind == Store || op.Kind == Fetch) && op.What == State && op.Unit == u {
					d.here[r][Value{Held: States, Unit: u, Host: op.Kind == Fetch}] = &item{ready: true}
					break
				}
			}
		}
	}
	for moved := true; moved; {
		moved = false
		for d.r = range p.Ranks {
			for d.at[d.r] < len(p.Ranks[d.r]) {
				op := p.Ranks[d.r][d.at[d.r]]
				d.took = d.takes(op)
				if d.over = d.now[d.r]; !d.paired() || !d.begin(op) {
					break
				}
				if !op.beside() {
					d.now[d.r], d.ends[d.r][d.at[d.r]] = d.over, d.over
				}
				d.at[d.r]++
				moved = true
			}
		}
		moved = d.move() || moved
	}
	for r, list := range p.Ranks {
		if d.at[r] < len(list) {
			return false
		}
		for _, q := range d.queues[r] {
			if len(q) > 0 {
				return false
			}
		}
		for _, i := range d.here[r] {
			if i.wasted() {
				return false
			}
		}
		for _, s := range d.state[r] {
			if s.updated != p.Micro || s.whole && s.old || s.stored != 0 || s.fresh {
				return false
			}
		}
	}
	return true
}

// paired refuses a paired pass that has no forward passes before it, and at the first of these tells whether what is
// under way by then, for it or the others of the pair, is there.
func (d *dumb) paired() (ready bool) {
	list, at := d.Ranks[d.r], d.at[d.r]
	skip := func(i, by int, in func(op Op) bool) int {
		for i += by; i >= 0 && i < len(list) && (list[i].Kind == Send || in(list[i])); i += by {
		}
		return i
	}
	op := list[at]
	if op.Paired {
		refuse(!slices.Contains([]Kind{Recompute, Backward, InputGrad, WeightGrad}, op.Kind) || d.Weights != Flush)
		first := skip(at, -1, func(o Op) bool { return o.Paired && o.Micro == op.Micro })
		refuse(first < 0 || list[first].Kind != Forward || list[first].Micro == op.Micro)
	}
	forward := func(o Op) bool { return o.Kind == Forward && o.Micro == op.Micro }
	before, second := skip(at, -1, forward), skip(at, 1, forward)
	if op.Kind != Forward || slices.ContainsFunc(list[before+1:at], forward) || second == len(list) ||
		!list[second].Paired {
		return true
	}
	end := skip(second, 1, func(o Op) bool { return o.Paired && o.Micro == list[second].Micro })
	for _, o := range list[at:end] {
		v := Value{Block: o.Block, Micro: o.Micro}
		values := []Value{v, {Held: OutGrad, Block: v.Block, Micro: v.Micro}}
		for _, u := range d.Blocks[o.Block].Units {
			values = append(values, Value{Held: Full, Unit: u})
		}
		for _, v := range values {
			if i := d.here[d.r][v]; i != nil && o.Kind != Send {
				if !i.ready {
					return false
				}
				d.now[d.r] = max(d.now[d.r], i.since)
			}
		}
	}
	d.over = d.now[d.r]
	return true
}

// takes is the time of an operation of the rank.
func (d *dumb) takes(op Op) (took float64) {
	if op.Kind != Update || op.Unit >= 0 {
		return d.costs.Time(op)
	}
	for _, u := range d.UnitsOn(d.r) {
		took += of(d.costs.Update, u, 0)
	}
	return took
}

// dumbPasses tells whether all passes are there, each as often, with its others on the same rank.
func dumbPasses(p *Plan) bool {
	count := map[int]bool{}
	for b := range p.Blocks {
		for m := range p.Micro {
			forwards := 0
			for _, list := range p.Ranks {
				n := map[Kind]int{}
				for _, op := range list {
					if op.Kind.Pass() && op.Kind != Update && op.Block == b && op.Micro == m {
						if n[op.Kind]++; op.Kind != Forward && n[Forward] == 0 || op.Kind == WeightGrad &&
							n[InputGrad] == 0 {
							return false
						}
					}
				}
				whole := n[Backward] == 1 && n[InputGrad] == 0 && n[WeightGrad] == 0
				halves := n[Backward] == 0 && n[InputGrad] == 1 && n[WeightGrad] == 1
				none := n[Forward]+n[Backward]+n[InputGrad]+n[WeightGrad]+n[Recompute] == 0
				if !none && (n[Forward] != 1 || !whole && !halves) {
					return false
				}
				forwards += n[Forward]
			}
			count[forwards] = true
		}
	}
	return len(count) == 1 && !count[0] && (len(p.Axes) > 0 || count[1])
}

// wasted tells whether a value was moved or recomputed and not used.
func (i *item) wasted() bool {
	return !i.used && (i.by == Recv || i.by == Store || i.by == Fetch || i.by == Recompute || i.by == Gather)
}

func (d *dumb) set(v Value, i *item) {
	old := d.here[d.r][v]
	refuse(old != nil && old.wasted())
	d.here[d.r][v] = i
}

// need tells whether values are there, and refuses those that never will be.
func (d *dumb) need(values ...Value) (ready bool) {
	ready = true
	for _, v := range values {
		i := d.here[d.r][v]
		refuse(i == nil)
		ready = ready && i.ready
	}
	if ready {
		d.over = d.now[d.r]
		for _, v := range values {
			d.here[d.r][v].used = true
			d.over = max(d.over, d.here[d.r][v].since)
		}
		d.over += d.took
	}
	return ready
}

// begin tells whether an operation can begin now.
func (d *dumb) begin(op Op) bool {
	value := func(h Held, block int) Value { return Value{Held: h, Block: block, Micro: op.Micro} }
	last := len(d.Blocks) - 1
	var parameters []Value
	if op.Kind.Pass() && op.Kind != Update {
		for _, u := range d.Blocks[op.Block].Units {
			if d.Units[u].Shard != "" {
				parameters = append(parameters, Value{Held: Full, Unit: u})
				refuse(op.Kind == Forward && d.state[d.r][u].old)
			}
		}
	}
	switch op.Kind {
	case Forward, Recompute:
		if op.Block == 0 && op.Kind == Forward {
			d.set(value(Input, 0), &item{ready: true})
		}
		if !d.need(append(parameters, value(Input, op.Block))...) {
			return false
		}
		if made := d.version(op); op.Kind == Forward { // of the weights
			if op.Block == 0 {
				d.first[op.Micro] = made
			}
			refuse(d.Weights == Vertical && d.first[op.Micro] > made)
			refuse(d.Weights == Double && op.Micro/d.Every-1 > made)
		}
		d.set(value(Saved, op.Block), &item{ready: true, by: op.Kind, since: d.over})
		if op.Block < last {
			d.set(value(Input, op.Block+1), &item{ready: true, since: d.over})
		}
	case Backward, InputGrad, WeightGrad:
		needs := append(parameters, value(Input, op.Block), value(Saved, op.Block))
		if op.Block < last {
			needs = append(needs, value(OutGrad, op.Block))
		}
		if op.Kind == WeightGrad && op.Block > 0 {
			needs = append(needs, value(ForWeightGrad, op.Block))
		}
		if !d.need(needs...) {
			return false
		}
		if op.Kind != WeightGrad && op.Block > 0 {
			d.set(value(OutGrad, op.Block-1), &item{ready: true, since: d.over})
			d.here[d.r][value(ForWeightGrad, op.Block)] = &item{ready: true}
		}
		for _, u := range d.Blocks[op.Block].Units {
			if op.Kind == InputGrad {
				continue
			}
			s, v := d.state[d.r][u], Value{Held: Sum, Unit: u}
			refuse(op.Micro < s.next[op.Block] || op.Micro/d.Every != s.updated/d.Every || s.away)
			s.next[op.Block] = op.Micro + 1
			if d.here[d.r][v] == nil {
				d.here[d.r][v] = &item{ready: true, grads: map[gradient]int{}}
			}
			d.here[d.r][v].grads[gradient{d.r, op.Block, op.Micro}]++
			d.here[d.r][v].since = d.over
		}
	case Update:
		return d.update(op)
	case Free:
		v := Value{Held: Full, Unit: op.Unit}
		if op.What == Activation {
			v = value(Input, op.Block)
		}
		if !d.need(v) {
			return false
		}
		delete(d.here[d.r], v)
		if op.What == Activation {
			d.shards[d.r][v] = true
		} else {
			d.state[d.r][op.Unit].whole = false
		}
	case Wait:
		op.Kind, op.Of = op.Of, 0
		t := d.began[d.r][op]
		refuse(t == nil)
		if t.ended {
			d.over = max(d.over, t.end)
		}
		return t.ended
	default:
		d.start(op)
	}
	return true
}

// version is how often the rank has updated a block.
func (d *dumb) version(op Op) (updates int) {
	for _, u := range d.Blocks[op.Block].Units {
		updates = d.state[d.r][u].updated / d.Every
	}
	return updates
}

func (d *dumb) update(op Op) bool {
	units := []int{op.Unit}
	if op.Unit < 0 {
		units = d.UnitsOn(d.r)
	}
	var needs []Value
	for _, u := range units {
		s := d.state[d.r][u]
		refuse(s == nil || op.Micro != s.updated+d.Every-1)
		needs = append(needs, d.gradients(u))
		for _, host := range []bool{false, true} {
			if v := (Value{Held: States, Unit: u, Host: host}); d.here[d.r][v] != nil {
				v.Host = false
				needs = append(needs, v)
			}
		}
		if v := (Value{Held: Full, Unit: u}); d.here[d.r][v] != nil {
			needs = append(needs, v)
		}
	}
	if !d.need(needs...) {
		return false
	}
	for _, u := range units {
		s, v := d.state[d.r][u], d.gradients(u)
		refuse(!maps.Equal(d.here[d.r][v].grads, d.due(d.r, u, op.Micro)))
		delete(d.here[d.r], v)
		s.updated += d.Every
		s.old = s.old || s.whole
	}
	return true
}

// gradients are what an update takes of a unit.
func (d *dumb) gradients(u int) Value {
	if len(d.Units[u].Reduce) == 0 {
		return Value{Held: Sum, Unit: u}
	}
	return Value{Held: Reduced, Unit: u}
}

// due are the gradients of which a rank's update must be.
func (d *dumb) due(rank, u, micro int) map[gradient]int {
	want := map[gradient]int{}
	owners := 0
	for r, list := range d.Ranks {
		if slices.Contains(d.UnitsOn(r), u) {
			owners++
		}
		for _, pass := range list {
			if pass.Kind == Forward && slices.Contains(d.Blocks[pass.Block].Units, u) &&
				pass.Micro/d.Every == micro/d.Every {
				want[gradient{r, pass.Block, pass.Micro}]++
			}
		}
	}
	apart := !slices.ContainsFunc(d.Units[u].Reduce,
		func(name string) bool { a, _ := d.Axis(name); return len(a.Groups) > 0 })
	if apart && owners == d.replicas { // each for itself
		maps.DeleteFunc(want, func(g gradient, _ int) bool { return g.rank != rank })
	}
	return want
}

// start begins an operation beside the passes.
func (d *dumb) start(op Op) {
	t := &transfer{op: op, rank: d.r, to: &item{by: op.Kind}, at: d.at[d.r], start: d.now[d.r]}
	take := func(v Value) {
		t.from = d.here[d.r][v]
		refuse(t.from == nil)
		delete(d.here[d.r], v)
	}
	input := Value{Held: Input, Block: op.Block, Micro: op.Micro}
	switch {
	case op.Kind == Send:
		v := input
		v.Block++
		if op.What == Gradient {
			v = Value{Held: OutGrad, Block: op.Block - 1, Micro: op.Micro}
		}
		t.from = d.here[d.r][v]
		refuse(t.from == nil)
	case op.Kind == Recv && op.What == Activation:
		d.set(input, t.to)
	case op.Kind == Recv:
		d.set(Value{Held: OutGrad, Block: op.Block, Micro: op.Micro}, t.to)
	case op.Kind == Gather && op.What == Activation:
		refuse(!d.shards[d.r][input])
		delete(d.shards[d.r], input)
		d.set(input, t.to)
	case op.Kind == Gather:
		s := d.state[d.r][op.Unit]
		refuse(s == nil || op.Axis != d.Units[op.Unit].Shard || s.whole && !s.old || s.fresh)
		if fresh := (Value{Held: Fresh, Unit: op.Unit}); d.here[d.r][fresh] != nil {
			take(fresh)
		}
		s.whole, s.old, t.to.by = true, false, 0
		d.here[d.r][Value{Held: Full, Unit: op.Unit}] = t.to
	case op.Kind == Reduce:
		axes, v := d.Units[op.Unit].Reduce, Value{Held: Reduced, Unit: op.Unit}
		refuse(!slices.Contains(axes, op.Axis))
		if t.old = d.here[d.r][v]; t.old != nil {
			t.needs = append(t.needs, t.old)
		}
		refuse(axes[0] != op.Axis && t.old == nil)
		if axes[0] == op.Axis {
			take(Value{Held: Sum, Unit: op.Unit})
		}
		d.here[d.r][v] = t.to
	case op.Kind == Store, op.Kind == Fetch:
		from := input
		if op.What == State {
			from = Value{Held: States, Unit: op.Unit}
			if s := d.state[d.r][op.Unit]; s != nil {
				s.stored += map[Kind]int{Store: 1, Fetch: -1}[op.Kind]
			}
			t.to.by = 0
		}
		if s := d.state[d.r][op.Unit]; s != nil && op.What == Gradient {
			from, s.away = d.gradients(op.Unit), op.Kind == Store
		} else if s != nil && op.What == Parameters {
			from, s.fresh, t.to.by = Value{Held: Fresh, Unit: op.Unit}, false, 0
		}
		to := from
		from.Host, to.Host = op.Kind == Fetch, op.Kind == Store
		take(from)
		d.set(to, t.to)
	case op.Kind == HostUpdate:
		s, from := d.state[d.r][op.Unit], d.gradients(op.Unit)
		from.Host = true
		refuse(s == nil || d.Weights != Flush || op.Micro != s.updated+d.Every-1)
		take(from)
		t.to.by = 0
		d.here[d.r][Value{Held: Fresh, Unit: op.Unit, Host: true}] = t.to
		s.updated, s.old, s.away, s.fresh = s.updated+d.Every, s.old || s.whole, false, true
	}
	if t.from != nil {
		t.from.used = true
		t.needs = append(t.needs, t.from)
	}
	d.queues[d.r][op.Stream()] = append(d.queues[d.r][op.Stream()], t)
	op.Peer = 0
	d.began[d.r][op] = t
}

// head is the first operation of a rank in a stream, if it can be.
func (d *dumb) head(rank int, l string) *transfer {
	q := d.queues[rank][l]
	if len(q) == 0 {
		return nil
	}
	for _, i := range q[0].needs {
		if !i.ready {
			return nil
		}
	}
	return q[0]
}

// move ends what can end beside the passes.
func (d *dumb) move() (did bool) {
	for r := range d.Ranks {
		for l := range d.queues[r] {
			t := d.head(r, l)
			if t == nil {
				continue
			}
			all := []*transfer{t}
			switch t.op.Kind {
			case Recv:
				continue
			case Send:
				other := d.head(t.op.Peer, Op{Kind: Recv, Peer: r}.Stream())
				if other == nil {
					continue
				}
				refuse(t.op.Message() != other.op.Message())
				all = append(all, other)
			case Gather, Reduce:
				all = nil
				a, _ := d.Axis(t.op.Axis)
				for _, q := range a.Group(r) {
					other := d.head(q, l)
					if other == nil {
						all = nil
						break
					}
					refuse(other.op.Kind != t.op.Kind || other.op.Unit != t.op.Unit || other.op.What != t.op.What)
					all = append(all, other)
				}
				if all == nil {
					continue
				}
			}
			did = true
			sum := map[gradient]int{}
			add := func(to map[gradient]int, i *item) {
				for g, n := range i.grads {
					to[g] += n
				}
			}
			for _, t := range all {
				if t.op.Kind == Reduce && t.from != nil {
					add(sum, t.from)
				} else if t.op.Kind == Reduce {
					add(sum, t.old)
				}
			}
			for _, t := range all {
				if t.op.Kind == Reduce {
					t.to.grads = map[gradient]int{}
					add(t.to.grads, &item{grads: sum})
					if t.from != nil && t.old != nil {
						add(t.to.grads, t.old)
					}
				}
				if t.op.What == Gradient && (t.op.Kind == Store || t.op.Kind == Fetch) {
					t.to.grads = t.from.grads
				}
				refuse(t.op.Kind == HostUpdate && !maps.Equal(t.from.grads, d.due(t.rank, t.op.Unit, t.op.Micro)))
				d.time(t, all)
				t.to.ready, t.to.since, t.ended = true, t.end, true
				k := t.op.Stream()
				d.queues[t.rank][k] = d.queues[t.rank][k][1:]
			}
			for _, t := range all {
				d.free[t.rank][t.op.Stream()] = t.end
			}
		}
	}
	return did
}

// time computes when an operation of several ranks ends on one of them.
func (d *dumb) time(t *transfer, all []*transfer) {
	for _, from := range all {
		start := from.start
		for _, i := range from.needs {
			start = max(start, i.since)
		}
		message := from.op.Kind == Send || from.op.Kind == Recv
		if !message {
			start = max(start, d.free[from.rank][from.op.Stream()])
		}
		if d.costs.Link != nil && from.rank != t.rank && from.op.Kind != Recv {
			start += d.costs.Link(from.rank, t.rank)
		} else if d.costs.Link != nil && t.op.Kind == Send && from == t {
			start += d.costs.Link(t.rank, t.op.Peer)
		}
		if from.op.Kind == Send {
			start += d.costs.Time(from.op)
		}
		t.end = max(t.end, start)
	}
	if t.op.Kind != Send && t.op.Kind != Recv {
		t.end += d.costs.Time(t.op)
	} else { // messages come in order
		t.end = max(t.end, d.free[t.rank][t.op.Stream()])
	}
	d.ends[t.rank][t.at] = t.end
}
