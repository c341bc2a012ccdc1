package step

import (
	"errors"
	"fmt"
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
	Full    // the gathered parameters of a unit that is sharded
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

	all          []*made // in the order in which they were made
	units        []int   // of the rank's blocks
	pass, stream []int   // of each operation, the last before it that is not beside the passes, and in its stream; or -1
}

// made is a value as one operation has made it.
type made struct {
	Value
	at    int   // position of what makes it; -1 where it was there before
	maker int   // of what has last added to it
	pass  int   // of the last pass that uses it
	last  int   // of the last use that is not beside the passes
	users []int // of those that are
	ends  int   // of the operation behind which it is needed no more
	never bool  // the operation that makes it ends it as well
}

// flow follows a rank's values through its list.
type flow struct {
	Flow
	*Plan
	list  []Op
	there map[Value]*made
	last  map[string]int // position of the last operation of each stream
	begun map[Op]int     // of those beside the passes, as a Wait names them
	state []unitState    // of each unit
	next  map[int]int    // of each block, the micro-batch that its gradient may be of
}

// Flow follows what a rank has through its list. Errors are those that [Plan.Check] finds in what it does with that,
// such as an operation that uses what is not there.
func (p *Plan) Flow(rank int) (*Flow, error) {
	if err := p.head(); err != nil {
		return nil, err
	}
	for i, op := range p.Ranks[rank] {
		if err := p.known(op); err != nil {
			return nil, p.errorAt(rank, i, "%w", err)
		}
	}
	f, err := p.follow(rank)
	if err != nil {
		return nil, err
	}
	return &f.Flow, nil
}

func (p *Plan) follow(rank int) (*flow, error) {
	list := p.Ranks[rank]
	n := len(list)
	f := &flow{Plan: p, list: list, there: map[Value]*made{}, last: map[string]int{}, begun: map[Op]int{},
		state: make([]unitState, len(p.Units)), next: map[int]int{}}
	f.Uses, f.Makes, f.Ends = make([][]Value, n), make([][]Value, n), make([][]Value, n+1)
	f.Unmade, f.After = make([][]Value, n), make([][]int, n)
	f.Done, f.pass, f.stream = make([]int, n), make([]int, n), make([]int, n)
	f.begins(rank)
	pass := -1
	for i, op := range list {
		if f.Done[i], f.pass[i] = i, pass; !op.beside() {
			pass = i
		}
		if err := f.step(i, op); err != nil {
			return nil, p.errorAt(rank, i, "%w", err)
		}
	}
	for i, done := range f.Done {
		if done < 0 { // what nobody waited for ends with the list
			f.Done[i] = n
		}
	}
	for _, m := range f.all {
		f.end(m)
	}
	return f, nil
}

// begins has the step begin with the parameters that the list leaves whole, of those that are sharded, and with the
// optimizer's states that it moves, where they are moved from first.
func (f *flow) begins(rank int) {
	f.units, f.Resident = f.UnitsOn(rank), map[int]bool{}
	moved := map[int]bool{}
	for u := range f.state {
		f.state[u].at = -1
	}
	for _, u := range f.units {
		if f.Units[u].Shard != "" {
			f.Resident[u] = true
		}
	}
	for _, op := range f.list {
		switch op.verb() {
		case verb{Gather, Parameters}:
			f.Resident[op.Unit] = true
		case verb{Free, Parameters}:
			delete(f.Resident, op.Unit)
		case verb{Store, State}, verb{Fetch, State}:
			if !moved[op.Unit] {
				moved[op.Unit] = true
				f.make(-1, Value{Held: States, Unit: op.Unit, Host: op.Kind == Fetch})
			}
		}
	}
	for u := range f.Resident {
		f.make(-1, Value{Held: Full, Unit: u})
	}
}

// unitsOf are the units that an operation is of, or whose parameters it uses.
func (p *Plan) unitsOf(op Op, all []int) []int {
	switch v := op.verb(); {
	case op.Kind == Wait, v.ofBlock() && !op.Kind.Pass():
		return nil
	case v.ofBlock():
		return p.Blocks[op.Block].Units
	case op.Unit < 0:
		return all
	}
	return []int{op.Unit}
}

// step has an operation do what the table says.
func (f *flow) step(i int, op Op) error {
	if f.stream[i] = -1; op.Kind == Wait {
		return f.wait(i, op)
	}
	units := f.unitsOf(op, f.units)
	if err := f.checkOp(i, op, units); err != nil {
		return err
	}
	if op.beside() {
		stream := op.Stream()
		if at, ok := f.last[stream]; ok {
			f.stream[i] = at
		}
		f.last[stream], f.Done[i] = i, -1
	}
	for _, t := range table[op.verb()].does {
		if op.Kind == Reduce && t.held == Sum && f.Units[op.Unit].Reduce[0] != op.Axis { // in place
			t.how, t.held = uses, Reduced
		}
		if t.held < Full {
			v := Value{Held: t.held, Block: op.Block, Micro: op.Micro, Host: t.where == host}
			switch t.where {
			case next:
				v.Block++
			case previous:
				v.Block--
			}
			if err := f.touch(i, t.how, v); err != nil {
				return err
			}
			continue
		}
		for _, u := range units {
			if err := f.touch(i, t.how, f.ofUnit(t.held, u, t.where == host)); err != nil {
				return err
			}
		}
	}
	if f.Done[i] < 0 {
		if a, ok := f.Axis(op.Axis); ok && len(a.Groups) == 0 { // it is a part of what the rank's devices compute
			f.finish(i, i)
		}
		op.Peer = 0
		f.begun[op] = i
	}
	return nil
}

// touch has an operation touch a value.
func (f *flow) touch(i int, does how, v Value) error {
	op, m := f.list[i], f.there[v]
	if m == nil && op.Kind == Forward && v.Held == Input && v.Block == 0 {
		m = f.make(i, v) // of the batch
	}
	away := v
	away.Host = !v.Host
	switch {
	case op.Kind.Pass() && !f.exists(v), m == nil && does >= mayUse && f.there[away] == nil:
		return nil
	case does == makes, does == adds && m == nil:
		if m != nil {
			f.after(i, m.maker)
		}
		f.make(i, v)
		return nil
	case m == nil && f.there[away] != nil && !v.Host:
		return fmt.Errorf("it needs %v, which the rank has in the host's memory alone: have it fetched before", f.describe(v))
	case m == nil:
		return fmt.Errorf("it needs %v, which the rank does not have: have it made, received, gathered or fetched before",
			f.describe(v))
	}
	f.after(i, m.maker)
	f.Uses[i] = append(f.Uses[i], v)
	if does == mayAwait {
		f.finish(m.maker, i)
		m.last = i
	} else if op.beside() {
		m.users = append(m.users, i)
	} else if m.last = i; op.Kind.Pass() {
		m.pass = i
	}
	if does == takes || does == mayTake {
		delete(f.there, v)
	} else if does == adds {
		m.maker = i
	}
	return nil
}

// exists tells whether there is a value that a pass touches: what the last block makes has the loss, the batch has no
// gradient, and only what is sharded is gathered.
func (p *Plan) exists(v Value) bool {
	switch v.Held {
	case Input:
		return v.Block < len(p.Blocks)
	case OutGrad:
		return v.Block >= 0 && v.Block < len(p.Blocks)-1
	case Left:
		return v.Block > 0
	case Full:
		return p.Units[v.Unit].Shard != ""
	}
	return true
}

// make has an operation make a value.
func (f *flow) make(i int, v Value) *made {
	m := &made{Value: v, at: i, maker: i, pass: i, last: i}
	f.all, f.there[v] = append(f.all, m), m
	if i >= 0 {
		f.Makes[i] = append(f.Makes[i], v)
	}
	return m
}

// wait has an operation wait for another.
func (f *flow) wait(i int, op Op) error {
	op.Kind, op.Of, op.Peer = op.Of, 0, 0
	at, ok := f.begun[op]
	if !ok {
		return errors.New("nothing such has begun: have it begin before")
	}
	f.After[i] = append(f.After[i], at)
	f.finish(at, i)
	return nil
}

// after has an operation begin after another, if that is under way.
func (f *flow) after(i, other int) {
	if other >= 0 && other != i && f.Done[other] < 0 {
		if f.After[i] = append(f.After[i], other); f.Done[i] == i {
			f.finish(other, i)
		}
	}
}

// finish has one that is under way end before another. What ends before it has ended then, too.
func (f *flow) finish(at, i int) {
	if at < 0 || f.Done[at] >= 0 {
		return
	}
	f.Done[at] = i
	f.finish(f.stream[at], i)
	for _, other := range f.After[at] {
		f.finish(other, i)
	}
}

// end says where a value ends: when all that use it have ended.
func (f *flow) end(m *made) {
	n := len(f.list)
	if m.ends = n - 1; f.there[m.Value] == m && (m.Held == Full && f.Resident[m.Unit] || m.Held == States ||
		m.Held == Fresh && !m.Host) {
		return // for the next step
	}
	at := max(m.last, 0)
	for _, i := range m.users {
		at = max(at, f.Done[i])
	}
	f.Ends[at] = append(f.Ends[at], m.Value)
	m.ends = min(at, n-1)
	if m.never = at == m.at; m.never {
		f.Unmade[at] = append(f.Unmade[at], m.Value)
	}
}
