package step

import (
	"errors"
	"fmt"
)

// Held is the kind of a value that a rank holds.
type Held byte

const (
	Input   Held = iota // a block's input for a micro-batch
	Saved               // activations that a block saves for its backward pass, for a micro-batch
	OutGrad             // output gradient of a block for a micro-batch; the last block has the loss instead
	// a device's shard of a block's input, between the passes (ZeRO-R)
	Part
	ForWeightGrad // what InputGrad computes and WeightGrad needs, for a micro-batch
	Full          // gathered parameters of a sharded unit
	Sum           // a unit's accumulated gradients on this rank, not reduced yet
	Reduced       // the gradients reduced over the ranks, or a shard of them
	Fresh         // a unit's parameters, or a shard of them, computed by an update on the host
	States        // a unit's optimizer states, if the plan moves them
)

// Value is something that a rank holds for part of a step.
type Value struct {
	Held               Held
	Block, Micro, Unit int
	Host               bool // in host memory
}

// Flow is the live ranges of a rank's values: lists by the position of an operation in the rank's list.
type Flow struct {
	Uses, Makes [][]Value
	// Ends lists the values that nothing needs after an operation. If the operation makes the value itself, nothing
	// needs it at all. A value that an operation under way still uses ends when that operation is done; the rank may
	// have a new value of the same name by then, such as the next sum of gradients.
	Ends [][]Value
	// Unmade lists the values in Makes that nothing needs. (In Ends the same name may mean the value before.)
	Unmade [][]Value
	// Done is the position of the operation that waits for one under way beside the passes: because it uses the result,
	// or is a Wait. It is the length of the list if nothing waits before the end.
	Done []int
	// After lists the operations under way that must be done before this one starts. Besides, the operations of a
	// stream ([Op.Stream]) run one after another.
	After [][]int
	// Resident are the sharded units whose full parameters are there before the first operation and after the last.
	Resident map[int]bool

	all   []*made // in order of creation
	units []int   // of the rank's blocks
	// by operation: the previous one that is not beside the passes, and the previous one of its stream; or -1
	pass, stream []int
}

// made is a value that one operation has made.
type made struct {
	Value
	at    int   // the operation that makes it; -1 if the step starts with it
	maker int   // the last operation that adds to it
	pass  int   // the last pass that uses it
	last  int   // its last use by an operation that is not beside the passes
	users []int // operations beside the passes that use it
	ends  int   // the operation after which nothing needs it
	never bool  // nothing needs it
}

// flow computes a Flow, operation by operation.
type flow struct {
	Flow
	*Plan
	list  []Op
	there map[Value]*made
	last  map[string]int // position of the last operation of each stream
	begun map[Op]int     // operations beside the passes, as a Wait names them
	state []unitState    // by unit
	next  map[int]int    // by block, the first micro-batch whose gradient may come next
	pairs []Pair
}

// Flow returns the live ranges of a rank's values. Errors are those of [Plan.Check] that concern one rank alone, such
// as an operation that uses a value that is not there.
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
		state: make([]unitState, len(p.Units)), next: map[int]int{}, pairs: p.Pairs(rank)}
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
		if done < 0 { // nothing waited for it
			f.Done[i] = n
		}
	}
	for _, m := range f.all {
		f.end(m)
	}
	return f, nil
}

// begins adds the values that the step starts with: the full parameters of sharded units that the list does not free at
// its end, and optimizer states that it moves.
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

// unitsOf returns the units that an operation is about, or whose parameters it uses.
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

// step applies the table's entry of an operation.
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
		if op.Kind == Reduce && t.held == Sum && f.Units[op.Unit].Reduce[0] != op.Axis { // along further axes: in place
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
		if a, ok := f.Axis(op.Axis); ok && len(a.Groups) == 0 { // part of the rank's own program
			f.finish(i, i)
		}
		op.Peer = 0
		f.begun[op] = i
	}
	return nil
}

// touch applies one use of a value.
func (f *flow) touch(i int, does how, v Value) error {
	op, m := f.list[i], f.there[v]
	if m == nil && op.Kind == Forward && v.Held == Input && v.Block == 0 {
		m = f.make(i, v) // the batch
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
		return fmt.Errorf("it needs %v, which is in host memory: fetch it before", f.describe(v))
	case m == nil:
		return fmt.Errorf("it needs %v, which the rank does not have: compute, receive, gather or fetch it before",
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

// exists reports whether the model has a value that the table lists for a pass: the last block has the loss in place of
// an output gradient, the batch has no gradient, and only sharded units are gathered.
func (p *Plan) exists(v Value) bool {
	switch v.Held {
	case Input:
		return v.Block < len(p.Blocks)
	case OutGrad:
		return v.Block >= 0 && v.Block < len(p.Blocks)-1
	case ForWeightGrad:
		return v.Block > 0
	case Full:
		return p.Units[v.Unit].Shard != ""
	}
	return true
}

func (f *flow) make(i int, v Value) *made {
	m := &made{Value: v, at: i, maker: i, pass: i, last: i}
	f.all, f.there[v] = append(f.all, m), m
	if i >= 0 {
		f.Makes[i] = append(f.Makes[i], v)
	}
	return m
}

func (f *flow) wait(i int, op Op) error {
	op.Kind, op.Of, op.Peer = op.Of, 0, 0
	at, ok := f.begun[op]
	if !ok {
		return errors.New("it waits for an operation that has not begun: begin that before")
	}
	f.After[i] = append(f.After[i], at)
	f.finish(at, i)
	return nil
}

// after makes operation i start after another one, if that is still under way. A pair starts when all is there that its
// passes need.
func (f *flow) after(i, other int) {
	if pair := f.pairs[i]; f.list[i].Kind.Pass() && other < pair.From {
		i = pair.From
	}
	if other >= 0 && other != i && f.Done[other] < 0 {
		if f.After[i] = append(f.After[i], other); f.Done[i] == i {
			f.finish(other, i)
		}
	}
}

// finish marks an operation under way as done before i, and with it all that had to be done before it.
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

// end sets where a value ends: when all operations that use it are done.
func (f *flow) end(m *made) {
	n := len(f.list)
	if m.ends = n - 1; f.there[m.Value] == m && (m.Held == Full && f.Resident[m.Unit] || m.Held == States ||
		m.Held == Fresh && !m.Host) {
		return // the next step needs it
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
