package step

import (
	"cmp"
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
	// a device's part of a block's input for a micro-batch, where devices share it between the passes
	Part
	Left    // what a block's InputGrad leaves for its WeightGrad, for a micro-batch
	Whole   // the gathered parameters of a unit that is sharded
	Sum     // the sum of a unit's gradients on this rank, which waits to be reduced
	Reduced // the sum over the ranks, or a shard of it
	Fresh   // a unit's parameters, or a shard of them, as an update on the host has made them
	States  // the optimizer's states of a unit, where the plan moves them
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
	// needed: it need not be made. What was used up by an operation under way, or made again meanwhile, ends when that
	// has ended, when the rank may have another of the same name: of gradients a new sum.
	Ends [][]Value
	// Unmade lists those of Makes that nobody needs, where Ends may mean the one before.
	Unmade [][]Value
	// Done is the position of the operation which waits for one that is under way beside the passes, because it uses
	// what that makes, or is a Wait; behind the end of the list for one that nobody waits for before.
	Done []int
	// After lists the operations under way that must have ended before one begins, since it uses what they make, or is
	// a Wait. Besides, those of a stream ([Op.Stream]) are one after another.
	After [][]int
	// Resident are the units whose parameters are whole before the first operation, and again behind the last.
	Resident map[int]bool

	all []*made // in the order in which they were made
}

// flow follows a rank's values through its list.
type flow struct {
	Flow
	p     *Plan
	there map[Value]*made
	list  []Op
	waits map[Op]*underWay   // operations that have begun, as a Wait names them, where the list has any
	last  map[lane]*underWay // of each stream
	begun []*underWay
	units []int // of the rank
	err   error
}

// made is a value as one operation has made it.
type made struct {
	Value
	at    int         // position of what makes it; -1 where it was there before
	pass  int         // position of the last pass that uses it
	ends  int         // position of the operation behind which it is needed no more
	never bool        // the operation that makes it ends it as well
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
	f := &flow{p: p, there: map[Value]*made{}, last: map[lane]*underWay{}, list: list}
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
	f.units, f.Resident = p.UnitsOn(rank), p.resident(rank)
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
		if v.Held == Whole && f.Resident[v.Unit] || v.Held == States || v.Held == Fresh && !v.Host {
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

// begins has the step begin with the optimizer's states that it moves, where they are moved from first.
func (f *flow) begins(list []Op) {
	seen := map[Value]bool{}
	for _, op := range list {
		v := f.p.operand(op)
		if op.Kind != Store && op.Kind != Fetch || v.Held != States || seen[v] {
			continue
		}
		seen[v] = true
		v.Host = op.Kind == Fetch
		f.make(-1, v)
	}
}

func (f *flow) step(i int, op Op) error {
	switch v := f.p.operand(op); op.Kind {
	case Forward, Recompute:
		f.forward(i, op)
		return f.err
	case Backward, InputGrad, WeightGrad:
		f.backward(i, op)
		return f.err
	case Update:
		for _, u := range op.units(f.units) {
			f.update(i, u)
		}
		return f.err
	case Free:
		if err := f.use(i, v); err != nil {
			return err
		}
		if f.end(i, v); op.What == Activation {
			f.make(i, op.value(Part))
		}
		return nil
	case Send:
		v, _ = op.gives()
		return f.begin(i, op, false, []Value{v}, nil)
	case Recv:
		v, _ = op.takes()
		return f.begin(i, op, false, nil, []Value{v})
	case Gather:
		var in []Value
		if fresh := (Value{Held: Fresh, Unit: op.Unit}); op.What == Activation {
			in = append(in, op.value(Part))
		} else if f.there[fresh] != nil {
			in = append(in, fresh)
		}
		return f.begin(i, op, true, in, []Value{v})
	case Reduce:
		sum, reduced := Value{Held: Sum, Unit: op.Unit}, Value{Held: Reduced, Unit: op.Unit}
		if op.What == State {
			for _, u := range op.units(f.units) { // behind what the host has made
				if fresh := (Value{Held: Fresh, Unit: u}); f.there[fresh] != nil {
					f.useAll(i, nil, fresh)
				}
			}
			return cmp.Or(f.err, f.begin(i, op, false, nil, nil))
		}
		if axes := f.p.Units[op.Unit].Reduce; len(axes) > 0 && axes[0] != op.Axis { // in place
			return f.begin(i, op, false, []Value{reduced}, []Value{reduced})
		}
		return f.begin(i, op, true, []Value{sum}, []Value{reduced})
	case Store, Fetch:
		from, to := v, v
		from.Host, to.Host = op.Kind == Fetch, op.Kind == Store
		return f.begin(i, op, true, []Value{from}, []Value{to})
	case HostUpdate:
		var in, out []Value
		for _, u := range op.units(f.units) {
			v := f.p.gradient(u)
			v.Host = true
			in, out = append(in, v), append(out, Value{Held: Fresh, Unit: u, Host: true})
		}
		return f.begin(i, op, true, in, out)
	}
	op.Kind, op.Of, op.Peer = op.Of, 0, 0 // of a Wait
	w := f.waits[op]
	if w == nil {
		return errors.New("nothing such has begun: have it begin before")
	}
	f.After[i] = append(f.After[i], w.at)
	f.finish(w, i)
	return nil
}

// operand is what Gather makes, Free ends, and Store and Fetch move.
func (p *Plan) operand(op Op) Value {
	switch op.What {
	case Activation:
		return op.value(Input)
	case Parameters:
		if op.Kind == Fetch {
			return Value{Held: Fresh, Unit: op.Unit}
		}
		return Value{Held: Whole, Unit: op.Unit}
	case Gradient:
		if op.Kind == Store || op.Kind == Fetch {
			return p.gradient(op.Unit)
		}
	}
	return Value{Held: States, Unit: op.Unit}
}

// gradient is what an update takes of a unit.
func (p *Plan) gradient(unit int) Value {
	if len(p.Units[unit].Reduce) == 0 {
		return Value{Held: Sum, Unit: unit}
	}
	return Value{Held: Reduced, Unit: unit}
}

// value is one of an operation's block, for its micro-batch.
func (op Op) value(h Held) Value { return Value{Held: h, Block: op.Block, Micro: op.Micro} }

func (f *flow) forward(i int, op Op) {
	if op.Block == 0 && op.Kind == Forward {
		f.make(i, op.value(Input))
	}
	f.useAll(i, f.whole(op.Block), op.value(Input))
	f.make(i, op.value(Saved))
	if op.Kind = Forward; op.Block < len(f.p.Blocks)-1 {
		v, _ := op.gives()
		f.make(i, v)
	}
}

func (f *flow) backward(i int, op Op) {
	uses := []Value{op.value(Input), op.value(Saved)}
	if op.Block < len(f.p.Blocks)-1 {
		uses = append(uses, op.value(OutGrad))
	}
	if op.Kind == WeightGrad && op.Block > 0 {
		uses = append(uses, op.value(Left))
	}
	f.useAll(i, f.whole(op.Block), uses...)
	if v, ok := op.gives(); ok && op.Block > 0 {
		f.make(i, v)
	}
	if op.Kind == InputGrad && op.Block > 0 {
		f.make(i, op.value(Left))
	}
	for _, u := range f.p.Blocks[op.Block].Units {
		if sum := (Value{Held: Sum, Unit: u}); op.Kind == InputGrad {
			break
		} else if f.there[sum] == nil {
			f.make(i, sum)
		} else {
			f.useAll(i, nil, sum)
		}
	}
}

// update takes gradients, and states that the list moves. Of gathered parameters it updates the rank's shard.
func (f *flow) update(i, u int) {
	v, states, whole := f.p.gradient(u), Value{Held: States, Unit: u}, Value{Held: Whole, Unit: u}
	away := states
	away.Host = true
	f.useAll(i, nil, v)
	if f.there[away] != nil || f.there[states] != nil {
		f.useAll(i, nil, states)
	}
	if f.there[whole] != nil {
		f.useAll(i, nil, whole)
	}
	if f.err == nil {
		f.end(i, v)
	}
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

// useAll has a pass use values. The first error stays.
func (f *flow) useAll(i int, whole []Value, values ...Value) {
	for _, v := range append(whole, values...) {
		if f.err == nil {
			f.err = f.use(i, v)
		}
	}
}

// use has a pass use a value, and wait for what makes it.
func (f *flow) use(i int, v Value) error {
	m := f.there[v]
	if m == nil {
		return f.lacks(v)
	}
	f.Uses[i] = append(f.Uses[i], v)
	if m.maker != nil {
		f.After[i] = append(f.After[i], m.maker.at)
		f.finish(m.maker, i)
	}
	if m.last = max(m.last, i); f.list[i].Kind.Pass() {
		m.pass = i
	}
	return nil
}

func (f *flow) lacks(v Value) error {
	return fmt.Errorf("it needs %v, which the rank does not have: have it made, received, gathered or fetched before",
		f.p.describe(v))
}

// make has an operation make a value, anew where it is there.
func (f *flow) make(i int, v Value) *made {
	if old := f.there[v]; old != nil {
		f.release(old, max(old.last, 0))
	}
	m := &made{Value: v, at: i, last: i, pass: i, ends: len(f.list) - 1}
	f.all = append(f.all, m)
	if f.there[v] = m; i >= 0 {
		f.Makes[i] = append(f.Makes[i], v)
	}
	return m
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
	m.ends = min(m.ends, i)
	if m.never = m.at == i; m.never {
		f.Unmade[i] = append(f.Unmade[i], m.Value)
	}
}

// begin has an operation go on beside the passes. It uses values, or takes them for good, and makes others or, of
// reduced gradients, adds to those that are there.
func (f *flow) begin(i int, op Op, take bool, in, out []Value) error {
	stream := op.lane()
	w := &underWay{at: i}
	if before := f.last[stream]; before != nil {
		w.before = append(w.before, before)
	}
	for _, v := range in {
		m := f.there[v]
		if m == nil {
			return f.lacks(v)
		}
		f.behind(w, m)
		f.Uses[i] = append(f.Uses[i], v)
		m.last, m.users, w.uses = max(m.last, i), append(m.users, w), append(w.uses, m)
		if take {
			m.gone = true
			delete(f.there, v)
		}
	}
	for _, v := range out {
		m := f.there[v]
		if m != nil {
			f.behind(w, m)
		}
		if m == nil || v.Held != Reduced {
			m = f.make(i, v)
		} else {
			f.Uses[i] = append(f.Uses[i], v)
		}
		m.last, m.maker, w.makes = max(m.last, i), w, append(w.makes, m)
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
