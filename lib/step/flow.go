package step

import (
	"errors"
	"fmt"
	"slices"
)

// Held is what a value is.
type Held byte

const (
	Input   Held = iota // of a block for a micro-batch: the output of the block before, or of the batch
	Saved               // what a block's backward pass needs of its forward pass, for a micro-batch
	OutGrad             // the gradient of a block's output for a micro-batch; of the last block none, it has the loss
	Left                // what a block's InputGrad leaves for its WeightGrad, for a micro-batch
	Whole               // the gathered parameters of a unit that is sharded
	Sum                 // the sum of a unit's gradients on this rank, which waits to be reduced
	Reduced             // the sum over the ranks, or a shard of it
	States              // the optimizer's states of a unit, where the plan moves them
)

// Value is something that a rank has for a while.
type Value struct {
	Held               Held
	Block, Micro, Unit int
	Host               bool // in the host's memory
}

// Flow is what becomes of values on a rank, by the position of the operation in its list.
type Flow struct {
	Uses, Makes [][]Value
	// Ends lists the values that are needed no more behind an operation. One that the operation makes itself is never
	// needed: it need not be made. What was used up by an operation under way, or made again meanwhile, ends when that has
	// ended, when the rank may have another of the same name: of gradients a new sum.
	Ends [][]Value
	// Unmade lists those of Makes that nobody needs, where Ends may mean the one before.
	Unmade [][]Value
	// Done is the position of the operation which waits for one that is under way beside the passes, because it uses what
	// that makes, or is a Wait; behind the end of the list for one that nobody waits for before.
	Done []int
	// After lists the operations under way that must have ended before one begins, since it uses what they make, or is a
	// Wait. Besides, those of a stream ([Op.Stream]) are one after another.
	After [][]int
	// Resident are the units whose parameters are whole before the first operation, and again behind the last.
	Resident map[int]bool
}

// flow follows a rank's values through its list.
type flow struct {
	Flow
	p     *Plan
	there map[Value]*made
	all   []*made            // in the order in which they were made
	waits map[Op]*underWay   // operations that have begun, as a Wait names them, where the list has any
	last  map[lane]*underWay // of each stream
	begun []*underWay
}

// made is a value as one operation has made it.
type made struct {
	Value
	at    int         // position of what makes it
	last  int         // position of the last use so far
	maker *underWay   // what makes it, if that has not ended
	users []*underWay // those under way that use it
	gone  bool        // freed, used up or made again: it ends when nobody uses it any more
}

// underWay is an operation beside the passes.
type underWay struct {
	at     int
	before []*underWay // which end before it: that before on its stream, and those that make what it uses
	uses   []*made
	makes  []*made
}

// Flow follows what a rank has through its list. An operation that uses what is not there is an error that says where.
func (p *Plan) Flow(rank int) (*Flow, error) {
	list := p.Ranks[rank]
	n := len(list)
	f := &flow{p: p, there: map[Value]*made{}, last: map[lane]*underWay{}}
	f.Uses, f.Makes, f.Ends = make([][]Value, n), make([][]Value, n), make([][]Value, n+1)
	f.Unmade, f.Done, f.After = make([][]Value, n), make([]int, n), make([][]int, n)
	if slices.ContainsFunc(list, func(op Op) bool { return op.Kind == Wait }) {
		f.waits = map[Op]*underWay{}
	}
	for i, op := range list {
		if err := p.known(op); err != nil {
			return nil, p.errorAt(rank, i, "%w", err)
		}
	}
	f.Resident = p.resident(rank)
	for u := range f.Resident {
		f.make(-1, Value{Held: Whole, Unit: u})
	}
	f.begins(list)
	for i, op := range list {
		f.Done[i] = i
		if err := f.step(i, op); err != nil {
			return nil, p.errorAt(rank, i, "%w", err)
		}
	}
	for _, w := range f.begun { // what nobody waited for ends with the list
		f.finish(w, n)
	}
	for _, m := range f.all {
		v := m.Value
		if f.there[v] != m { // it has ended
			continue
		}
		if v.Held == Whole && (v.Host || f.Resident[v.Unit] || p.Units[v.Unit].Shard == "") || v.Held == States {
			continue // for the next step
		}
		f.endAt(m, max(m.last, 0))
	}
	return &f.Flow, nil
}

// resident are the units that a rank's list leaves whole, of those that are sharded.
func (p *Plan) resident(rank int) map[int]bool {
	whole := map[int]bool{}
	for _, u := range p.UnitsOn(rank) {
		if p.Units[u].Shard != "" {
			whole[u] = true
		}
	}
	for _, op := range p.Ranks[rank] {
		if op.What == Parameters && op.Kind == Gather {
			whole[op.Unit] = true
		} else if op.What == Parameters && op.Kind == Free {
			delete(whole, op.Unit)
		}
	}
	return whole
}

// begins has the step begin with what is first moved to the host or back: the optimizer's states, which are where they
// are moved from, and parameters in the host's memory.
func (f *flow) begins(list []Op) {
	seen := map[Value]bool{}
	for _, op := range list {
		v := Value{Held: States, Unit: op.Unit}
		if op.What == Parameters {
			v.Held = Whole
		}
		if op.Kind != Store && op.Kind != Fetch || op.What != State && op.What != Parameters || seen[v] {
			continue
		}
		seen[v] = true
		if v.Host = op.Kind == Fetch; v.Host || v.Held == States {
			f.make(-1, v)
		}
	}
}

func (f *flow) step(i int, op Op) error {
	at := func(h Held) Value { return Value{Held: h, Block: op.Block, Micro: op.Micro} }
	next := func(h Held) Value { return Value{Held: h, Block: op.Block + 1, Micro: op.Micro} }
	before := func(h Held) Value { return Value{Held: h, Block: op.Block - 1, Micro: op.Micro} }
	unit := func(h Held) Value { return Value{Held: h, Unit: op.Unit} }
	lastBlock := op.Block == len(f.p.Blocks)-1
	switch op.Kind {
	case Forward, Recompute:
		if op.Block == 0 && op.Kind == Forward {
			f.make(i, at(Input))
		}
		if err := f.use(i, append(f.whole(op.Block), at(Input))...); err != nil {
			return err
		}
		f.make(i, at(Saved))
		if !lastBlock {
			f.make(i, next(Input))
		}
	case Backward, InputGrad, WeightGrad:
		uses := append(f.whole(op.Block), at(Input), at(Saved))
		if !lastBlock {
			uses = append(uses, at(OutGrad))
		}
		if op.Kind == WeightGrad && op.Block > 0 {
			uses = append(uses, at(Left))
		}
		if err := f.use(i, uses...); err != nil {
			return err
		}
		if op.Kind != WeightGrad && op.Block > 0 {
			f.make(i, before(OutGrad))
		}
		if op.Kind == InputGrad && op.Block > 0 {
			f.make(i, at(Left))
		}
		if op.Kind != InputGrad {
			for _, u := range f.p.Blocks[op.Block].Units {
				f.add(i, Value{Held: Sum, Unit: u})
			}
		}
	case Update:
		units := []int{op.Unit}
		if op.Unit < 0 {
			units = f.unitsWithSums()
		}
		for _, u := range units {
			v := f.gradient(u)
			if host := (Value{Held: v.Held, Unit: u, Host: true}); f.there[host] != nil && f.there[v] == nil {
				v = host
			}
			if err := f.use(i, v); err != nil {
				return err
			}
			states := Value{Held: States, Unit: u}
			if moved := (Value{Held: States, Unit: u, Host: true}); !v.Host && f.there[moved] != nil || f.there[states] != nil {
				if err := f.use(i, states); err != nil {
					return err
				}
			}
			if whole := (Value{Held: Whole, Unit: u}); f.there[whole] != nil { // of which it updates its shard
				_ = f.use(i, whole)
			}
			f.end(i, v)
		}
	case Send:
		v := next(Input)
		if op.What == Gradient {
			v = before(OutGrad)
		}
		return f.begin(i, op, []Value{v}, nil, nil)
	case Recv:
		v := at(Input)
		if op.What == Gradient {
			v = at(OutGrad)
		}
		return f.begin(i, op, nil, nil, []Value{v})
	case Gather:
		if op.What == Activation {
			return f.begin(i, op, nil, nil, []Value{at(Input)})
		}
		return f.begin(i, op, nil, nil, []Value{unit(Whole)})
	case Free:
		v := unit(Whole)
		if op.What == Activation {
			v = at(Input)
		}
		if err := f.use(i, v); err != nil {
			return err
		}
		f.end(i, v)
	case Reduce:
		if op.What == State {
			return f.begin(i, op, nil, nil, nil)
		}
		if axes := f.p.Units[op.Unit].Reduce; len(axes) > 0 && axes[0] != op.Axis { // in place
			return f.begin(i, op, []Value{unit(Reduced)}, nil, []Value{unit(Reduced)})
		}
		return f.begin(i, op, nil, []Value{unit(Sum)}, []Value{unit(Reduced)})
	case Store, Fetch:
		v := at(Input)
		switch op.What {
		case State:
			v = unit(States)
		case Gradient:
			v = f.gradient(op.Unit)
		case Parameters:
			v = unit(Whole)
		}
		from, to := v, v
		from.Host, to.Host = op.Kind == Fetch, op.Kind == Store
		return f.begin(i, op, nil, []Value{from}, []Value{to})
	case Wait:
		op.Kind, op.Of, op.Peer = op.Of, 0, 0
		w := f.waits[op]
		if w == nil {
			return errors.New("nothing such has begun: have it begin before")
		}
		f.After[i] = append(f.After[i], w.at)
		f.finish(w, i)
	default:
		return fmt.Errorf("unknown kind %q", byte(op.Kind))
	}
	return nil
}

// gradient is what an update takes of a unit.
func (f *flow) gradient(unit int) Value {
	if len(f.p.Units[unit].Reduce) == 0 {
		return Value{Held: Sum, Unit: unit}
	}
	return Value{Held: Reduced, Unit: unit}
}

// whole are the gathered parameters that a block's passes use.
func (f *flow) whole(block int) (values []Value) {
	for _, u := range f.p.Blocks[block].Units {
		if f.p.Units[u].Shard != "" {
			values = append(values, Value{Held: Whole, Unit: u})
		}
	}
	return values
}

func (f *flow) unitsWithSums() (units []int) {
	for u := range f.p.Units {
		v, host := f.gradient(u), f.gradient(u)
		host.Host = true
		if f.there[v] != nil || f.there[host] != nil || f.there[Value{Held: Sum, Unit: u}] != nil {
			units = append(units, u)
		}
	}
	return units
}

// use has a pass use values, and wait for what makes them.
func (f *flow) use(i int, values ...Value) error {
	for _, v := range values {
		m := f.there[v]
		if m == nil {
			return fmt.Errorf("it needs %v, which the rank does not have: have it made, received, gathered or fetched before",
				f.p.describe(v))
		}
		f.Uses[i] = append(f.Uses[i], v)
		if m.maker != nil {
			f.After[i] = append(f.After[i], m.maker.at)
			f.finish(m.maker, i)
		}
		m.last = max(m.last, i)
	}
	return nil
}

// make has an operation make a value, anew where it is there.
func (f *flow) make(i int, v Value) *made {
	if old := f.there[v]; old != nil {
		f.release(old, max(old.last, 0))
	}
	m := &made{Value: v, at: i, last: i}
	f.all = append(f.all, m)
	if f.there[v] = m; i >= 0 {
		f.Makes[i] = append(f.Makes[i], v)
	}
	return m
}

// add has a pass add to a sum, which it makes where there is none.
func (f *flow) add(i int, v Value) {
	if f.there[v] == nil {
		f.make(i, v)
		return
	}
	_ = f.use(i, v) // which is there
}

// end frees a value behind an operation.
func (f *flow) end(i int, v Value) {
	f.release(f.there[v], i)
	delete(f.there, v)
}

// release ends a value that nobody will use from now on, when those that are under way have used it.
func (f *flow) release(m *made, i int) {
	if m.gone = true; len(m.users) == 0 {
		f.endAt(m, i)
	}
}

func (f *flow) endAt(m *made, i int) {
	f.Ends[i] = append(f.Ends[i], m.Value)
	if m.at == i {
		f.Unmade[i] = append(f.Unmade[i], m.Value)
	}
}

// begin has an operation go on beside the passes. It uses some values, takes some for good, and makes some or adds to
// them.
func (f *flow) begin(i int, op Op, uses, takes, makes []Value) error {
	stream := op.lane()
	w := &underWay{at: i}
	if before := f.last[stream]; before != nil {
		w.before = append(w.before, before)
	}
	for k, v := range slices.Concat(uses, takes) {
		m := f.there[v]
		if m == nil {
			return fmt.Errorf("it needs %v, which the rank does not have: have it made before", f.p.describe(v))
		}
		f.behind(w, m)
		f.Uses[i] = append(f.Uses[i], v)
		m.last, m.users = max(m.last, i), append(m.users, w)
		w.uses = append(w.uses, m)
		if k >= len(uses) {
			m.gone = true
			delete(f.there, v)
		}
	}
	for _, v := range makes {
		m := f.there[v]
		if m != nil {
			f.behind(w, m)
		}
		if m == nil || v.Held != Reduced {
			m = f.make(i, v)
		} else {
			f.Uses[i] = append(f.Uses[i], v)
		}
		m.last, m.maker = max(m.last, i), w
		w.makes = append(w.makes, m)
	}
	if op.Peer = 0; f.waits != nil {
		f.waits[op] = w
	}
	f.last[stream], f.Done[i] = w, -1
	f.begun = append(f.begun, w)
	if a, ok := f.p.Axis(op.Axis); ok && len(a.Groups) == 0 { // it is a part of what the rank's devices compute
		f.finish(w, i)
	}
	return nil
}

// behind has an operation wait for what makes a value, if that is under way.
func (f *flow) behind(w *underWay, m *made) {
	if m.maker != nil && m.maker != w {
		f.After[w.at] = append(f.After[w.at], m.maker.at)
		w.before = append(w.before, m.maker)
	}
}

// finish has an operation wait for one that is under way. What ends before that has ended then, too.
func (f *flow) finish(w *underWay, i int) {
	if f.Done[w.at] != -1 {
		return
	}
	f.Done[w.at] = i
	for _, before := range w.before {
		f.finish(before, i)
	}
	for _, m := range w.makes {
		if m.maker == w {
			m.maker = nil
		}
	}
	for _, m := range w.uses {
		m.last = max(m.last, i)
		m.users = slices.DeleteFunc(m.users, func(u *underWay) bool { return u == w })
		if m.gone && len(m.users) == 0 {
			f.endAt(m, i)
		}
	}
	w.before, w.uses, w.makes = nil, nil, nil
}
