package step

import (
	"errors"
	"fmt"
	"slices"
)

// Check proves that the plan can run, loses no gradient, and uses the versions of the weights that its [Weights]
// promise. A plan without messages is checked as [Plan.WithMessages] completes it. Errors name the rank, the position
// and what to change:
//
//   - invalid sizes; a block, micro-batch, unit, axis or rank that does not exist;
//   - a pass that is missing, repeated, or before one that it needs; both Backward and InputGrad or WeightGrad; the
//     passes of a block for one micro-batch on several ranks;
//   - gradients of a block that are not accumulated in ascending order of micro-batches, the order that makes all plans
//     compute the same bits;
//   - an update that is missing, too early or too late: each unit is updated after every [Plan].Every micro-batches;
//   - gradients that an update uses before they are reduced along each axis of their unit, or that are reduced twice; a
//     unit whose axes do not join all ranks that have it;
//   - a version of the weights that is used before it exists, or gathered parameters from before an update;
//   - an operation that uses what is not there, such as parameters that are not gathered; a value that is received,
//     stored, fetched or recomputed and not used; parameters that are gathered twice or never freed;
//   - ranks of a group, or sender and receiver, that do not communicate the same in the same order;
//   - a paired pass without forward passes before it: see [Pair];
//   - a deadlock, with the operations at which the ranks wait.
func (p *Plan) Check() error {
	_, err := p.checked()
	return err
}

// checked is a plan that passed [Plan.Check].
type checked struct {
	*Plan            // including messages
	flows    []*Flow // by rank
	versions [][]int // of the plan without messages
}

func (p *Plan) checked() (*checked, error) {
	replicas, err := p.passes()
	if err != nil {
		return nil, err
	}
	c := &checked{Plan: p}
	if c.versions, err = p.versionsOf(); err != nil {
		return nil, err
	}
	if !p.hasMessages() {
		c.Plan = p.withMessages(replicas)
	}
	if err := c.checkJoined(replicas); err != nil {
		return nil, err
	}
	c.flows = make([]*Flow, len(c.Ranks))
	for r, list := range c.Ranks {
		same := slices.IndexFunc(c.Ranks[:r], func(other []Op) bool { return slices.Equal(list, other) })
		if same >= 0 { // replicas have equal lists
			c.flows[r] = c.flows[same]
			continue
		}
		f, err := c.follow(r)
		if err == nil {
			err = f.checkEnd(r)
		}
		if err != nil {
			return nil, err
		}
		c.flows[r] = &f.Flow
	}
	_, err = c.play(Costs{})
	return c, err
}

func (p *Plan) hasMessages() bool {
	return slices.ContainsFunc(p.Ranks, func(list []Op) bool { return slices.ContainsFunc(list, Op.isMessage) })
}

// checkJoined checks that the axes of each unit join all ranks that have it, once each. A unit without axes between
// ranks may be on all replicas: local SGD averages its parameters now and then.
func (p *Plan) checkJoined(replicas int) error {
	known := map[string]bool{}
	for u, have := range p.owners() {
		axes := p.Units[u].Reduce
		shape := fmt.Sprint(axes, setText(have))
		apart := !slices.ContainsFunc(axes, func(name string) bool { a, _ := p.Axis(name); return len(a.Groups) > 0 })
		if known[shape] || apart && len(have) == replicas {
			continue
		}
		known[shape] = true
		for _, r := range have {
			if reached := p.reached(u, r); !slices.Equal(reached, have) {
				return fmt.Errorf("step: unit %d is on ranks %s, and along %v rank %d gets the gradients of ranks %s: "+
					"let the axes join all that have the unit, once each", u, setText(have), axes, r, setText(reached))
			}
		}
	}
	return nil
}

// reached returns the ranks whose gradients of a unit are reduced into a rank's, or that have other parameters of it,
// in ascending order.
func (p *Plan) reached(unit, rank int) []int {
	ranks := []int{rank}
	for _, name := range slices.Backward(append(slices.Clone(p.Units[unit].Reduce), p.Units[unit].Apart)) {
		var more []int
		for _, r := range ranks {
			a, _ := p.Axis(name)
			more = append(more, a.Group(r)...)
		}
		ranks = more
	}
	slices.Sort(ranks)
	return ranks
}

// unitState is what a rank's list has done with a unit so far.
type unitState struct {
	updates int
	at      int // position of the last update, or -1
	reduced int // axes along which the gradients for the next update are reduced
}

// due returns the next update of a unit.
func (f *flow) due(u int) Op {
	return Op{Kind: Update, Unit: u, Micro: f.state[u].updates*f.Every + f.Every - 1}
}

// ofUnit returns a value of a unit. For a unit that is not reduced, Reduced is Sum.
func (p *Plan) ofUnit(held Held, u int, host bool) Value {
	if held == Reduced && len(p.Units[u].Reduce) == 0 {
		held = Sum
	}
	return Value{Held: held, Unit: u, Host: host}
}

// has reports whether the rank has a value of a unit.
func (f *flow) has(held Held, u int, host bool) bool { return f.there[f.ofUnit(held, u, host)] != nil }

// old reports whether the unit's gathered parameters are from before its last update.
func (f *flow) old(u int) bool {
	full := f.there[Value{Held: Full, Unit: u}]
	return full != nil && full.at < f.state[u].at
}

// checkOp checks what the values that an operation uses do not tell.
func (f *flow) checkOp(i int, op Op, units []int) error {
	switch op.Kind {
	case HostUpdate:
		if f.Weights != Flush {
			return fmt.Errorf("with weights %q, passes of other micro-batches run at the same time: update on the "+
				"device", f.Weights)
		}
	case Backward, WeightGrad:
		if op.Micro < f.next[op.Block] {
			return fmt.Errorf("the block's gradient for micro-batch %d came before: accumulate them in ascending order",
				f.next[op.Block]-1)
		}
		f.next[op.Block] = op.Micro + 1
	}
	for _, u := range units {
		if err := f.checkUnit(i, op, u); err != nil {
			return err
		}
	}
	return nil
}

func (f *flow) checkUnit(i int, op Op, u int) error {
	unit, s, due := f.Units[u], &f.state[u], f.due(u)
	switch op.verb() {
	case verb{Forward, 0}:
		if f.old(u) && unit.Shard != "" {
			return errors.New("the gathered parameters are from before the update: gather them again")
		}
	case verb{Backward, 0}, verb{WeightGrad, 0}:
		switch {
		case f.has(Reduced, u, true):
			return fmt.Errorf("the gradients of unit %d are in host memory: store them after this", u)
		case op.Micro <= due.Micro-f.Every:
			return fmt.Errorf("the update of unit %d that needs its gradient came before: move the update after it", u)
		case op.Micro > due.Micro:
			return fmt.Errorf("its gradient belongs to a later update than %v: move that update before it", f.Text(due))
		}
	case verb{Update, 0}, verb{HostUpdate, 0}:
		switch {
		case due.Micro >= f.Micro:
			return fmt.Errorf("unit %d has had its last update: remove this one", u)
		case op.Micro != due.Micro:
			return fmt.Errorf("the next update of the unit is %v, every %d micro-batches", f.Text(due), f.Every)
		case len(unit.Reduce) > 0 && (f.has(Sum, u, false) || s.reduced < len(unit.Reduce)):
			return fmt.Errorf("gradients are not reduced along all of %v: reduce them before", unit.Reduce)
		}
		s.updates, s.reduced, s.at = s.updates+1, 0, i
	case verb{Reduce, Gradient}:
		return f.checkReduce(op, u)
	case verb{Gather, Parameters}:
		if unit.Shard == "" || op.Axis != unit.Shard {
			return fmt.Errorf("the unit is sharded along %q, not along %q", unit.Shard, op.Axis)
		}
		if f.has(Full, u, false) && !f.old(u) {
			return errors.New("the rank has gathered them already: free them at the end of the list, or remove this")
		}
	}
	return nil
}

// checkReduce checks the order of reductions: along the first axis as often as there are new gradients, then along each
// other axis once, in the unit's order.
func (f *flow) checkReduce(op Op, u int) error {
	axes, s, summed := f.Units[u].Reduce, &f.state[u], f.has(Sum, u, false)
	at := slices.Index(axes, op.Axis)
	switch {
	case at < 0:
		return fmt.Errorf("the unit is reduced along %v, not along %q", axes, op.Axis)
	case at > s.reduced, at > 0 && summed:
		return fmt.Errorf("it has gradients that are not reduced along %q: reduce them along that axis before",
			axes[at-1])
	case at > 0 && at < s.reduced, at == 0 && s.reduced > 1:
		return fmt.Errorf("earlier gradients are reduced along %q already: remove this reduction, or move it before "+
			"that one", axes[s.reduced-1])
	}
	s.reduced = at + 1
	return nil
}

// checkEnd checks what the list leaves behind, and what it makes and never uses.
func (f *flow) checkEnd(rank int) error {
	for _, u := range f.units {
		if due := f.due(u); due.Micro < f.Micro {
			return fmt.Errorf("step: rank %d has no update %v: each of its units needs one every %d micro-batches",
				rank, f.Text(due), f.Every)
		}
	}
	for _, m := range f.all {
		switch last := f.there[m.Value]; {
		case m.Held == States && m.at < 0 && last == nil:
			return fmt.Errorf("step: rank %d moves the optimizer's states of unit %d and does not move them back: "+
				"store them as often as it fetches them", rank, m.Unit)
		case m.Held == Fresh && m.Host && last == m:
			return fmt.Errorf("step: rank %d leaves the new parameters of unit %d in host memory: fetch them",
				rank, m.Unit)
		case m.Held == Full && f.Resident[m.Unit] && f.old(m.Unit):
			return fmt.Errorf("step: rank %d ends with gathered parameters of unit %d from before its update: "+
				"gather them after the update, or free them before", rank, m.Unit)
		case m.never && f.list[m.at].wastes(m.Held):
			return f.errorAt(rank, m.at, "nothing uses %v after it: remove it", f.describe(m.Value))
		}
	}
	return nil
}

// wastes reports whether it is wrong that nothing uses a value that an operation makes. Passes may make such values.
func (op Op) wastes(held Held) bool {
	switch op.Kind {
	case Recv, Store, Fetch, Gather:
		return true
	}
	return op.Kind == Recompute && held == Saved
}

// passRules says which results of a block for a micro-batch each pass computes (is), and which it needs before: bits,
// with the names in passWords.
var passRules = map[Kind]struct{ is, needs int }{
	Forward: {is: 1}, Backward: {is: 6, needs: 1}, InputGrad: {is: 2, needs: 1}, WeightGrad: {is: 4, needs: 3},
	Recompute: {needs: 1},
}

const allPasses = 7

var passWords = map[int]string{1: "forward pass", 2: "input gradient", 4: "weight gradient"}

// passes finds invalid sizes, operations of blocks, units or ranks that do not exist, and passes that are missing,
// repeated, out of order or on several ranks. Replicas is the number of ranks that have each pass.
func (p *Plan) passes() (replicas int, err error) {
	if err := p.head(); err != nil {
		return 0, err
	}
	on := make([]int, len(p.Blocks)*p.Micro) // ranks with its passes, by block and micro-batch
	for r, list := range p.Ranks {
		done := map[int]int{}
		for i, op := range list {
			if err := p.known(op); err != nil {
				return 0, p.errorAt(r, i, "%w", err)
			}
			rule, key := passRules[op.Kind], op.Block*p.Micro+op.Micro
			if lacks := rule.needs &^ done[key]; lacks != 0 {
				return 0, p.errorAt(r, i, "the rank has no %s of the micro-batch before it: move it after that, on "+
					"the same rank", passWords[lacks&-lacks])
			} else if done[key]&rule.is != 0 {
				return 0, p.errorAt(r, i, "the rank has done that already: remove one; use B, or I and W")
			}
			done[key] |= rule.is
		}
		if err := p.checkPairs(r); err != nil {
			return 0, err
		}
		for _, op := range list {
			if op.Kind != Forward {
				continue
			}
			key := op.Block*p.Micro + op.Micro
			if op.Kind = map[int]Kind{4: WeightGrad, 6: Backward}[allPasses&^done[key]]; op.Kind != 0 {
				return 0, fmt.Errorf("step: block %d has no %v for micro-batch %d: add %v to rank %d",
					op.Block, op.Kind, op.Micro, p.Text(op), r)
			}
			on[key]++
		}
	}
	replicas = 1
	if len(p.Axes) > 0 {
		replicas = slices.Max(on)
	}
	for key, n := range on {
		op := Op{Kind: Forward, Block: key / p.Micro, Micro: key % p.Micro}
		switch {
		case n == 0:
			return 0, fmt.Errorf("step: block %d has no forward pass for micro-batch %d: add %v to a rank",
				op.Block, op.Micro, p.Text(op))
		case n != replicas:
			return 0, fmt.Errorf("step: block %d has its passes for micro-batch %d on %d ranks, want %d: "+
				"have one in each replica", op.Block, op.Micro, n, replicas)
		}
	}
	return replicas, nil
}

// head checks all but the lists.
func (p *Plan) head() error {
	ops := 0
	for _, list := range p.Ranks {
		ops += len(list)
	}
	switch {
	case len(p.Ranks) == 0:
		return errors.New("step: no ranks: give at least one")
	case len(p.Blocks) == 0:
		return errors.New("step: no blocks: give at least one")
	case p.Micro < 1:
		return fmt.Errorf("step: %d micro-batches: give at least 1", p.Micro)
	case p.Micro > ops/len(p.Blocks): // bounds the memory of the checks
		return fmt.Errorf("step: %d operations are too few for %d blocks and %d micro-batches", ops, len(p.Blocks),
			p.Micro)
	case p.Every < 1 || p.Micro%p.Every != 0:
		return fmt.Errorf("step: an update every %d micro-batches: give a divisor of the %d micro-batches", p.Every,
			p.Micro)
	case p.Weights == Flush && p.Every != p.Micro:
		return fmt.Errorf("step: an update every %d of %d micro-batches: weights %q need one every %d; use that, or "+
			"other weights", p.Every, p.Micro, p.Weights, p.Micro)
	case !slices.Contains(allWeights, p.Weights):
		return fmt.Errorf("step: unknown weights %q: use one of %v", p.Weights, allWeights)
	}
	for b, block := range p.Blocks {
		for _, u := range block.Units {
			if u < 0 || u >= len(p.Units) {
				return fmt.Errorf("step: block %d uses unit %d: there are %d units", b, u, len(p.Units))
			}
		}
	}
	return p.checkAxes()
}

func (p *Plan) checkAxes() error {
	names := map[string]bool{}
	for _, a := range p.Axes {
		if !plain(a.Name) || names[a.Name] {
			return fmt.Errorf("step: axis %q: give each axis a name of its own, of letters, digits and -_.+/ alone",
				a.Name)
		}
		names[a.Name] = true
		in := map[int]bool{}
		for _, g := range a.Groups {
			if len(g) != a.Size {
				return fmt.Errorf("step: axis %s has a group of %d ranks, want its size, %d", a.Name, len(g), a.Size)
			}
			for _, r := range g {
				if r < 0 || r >= len(p.Ranks) || in[r] {
					return fmt.Errorf("step: axis %s: rank %d is in two groups, or not below %d", a.Name, r,
						len(p.Ranks))
				}
				in[r] = true
			}
		}
	}
	for u, unit := range p.Units {
		once := map[string]bool{}
		for _, name := range unit.Reduce {
			if !names[name] || once[name] {
				return fmt.Errorf("step: unit %d is reduced along %q twice, or the plan has no such axis", u, name)
			}
			once[name] = true
		}
		if unit.Shard != "" && !once[unit.Shard] {
			return fmt.Errorf("step: unit %d is sharded along %q: use an axis that it is reduced along", u, unit.Shard)
		}
	}
	return nil
}

// known returns an error for an operation of a block, unit, axis or rank that does not exist.
func (p *Plan) known(op Op) error {
	v := op.verb()
	if op.Kind == Wait {
		v.Kind = op.Of
	}
	if _, ok := table[v]; !ok {
		return fmt.Errorf("unknown kind %q of %q", byte(op.Kind), byte(op.What))
	}
	least, last := 0, len(p.Blocks)-1
	if v.ofAll() {
		least = -1
	}
	switch {
	case v.ofBlock() && (op.Block < 0 || op.Block > last):
		return fmt.Errorf("block %d: the model has blocks 0 to %d", op.Block, last)
	case !v.ofBlock() && (op.Unit < least || op.Unit >= len(p.Units)):
		return fmt.Errorf("unit %d: there are units 0 to %d", op.Unit, len(p.Units)-1)
	case op.Micro < 0 || op.Micro >= p.Micro:
		return fmt.Errorf("micro-batch %d: there are micro-batches 0 to %d", op.Micro, p.Micro-1)
	case op.Peer < 0 || op.Peer >= len(p.Ranks):
		return fmt.Errorf("rank %d: there are ranks 0 to %d", op.Peer, len(p.Ranks)-1)
	case (v == verb{Send, Activation} || v == verb{Recv, Gradient}) && op.Block == last,
		(v == verb{Send, Gradient} || v == verb{Recv, Activation}) && op.Block == 0:
		return errors.New("there is no block before the first or after the last: remove it")
	}
	if op.Kind == Gather || op.Kind == Reduce {
		if _, ok := p.Axis(op.Axis); !ok {
			return fmt.Errorf("axis %q: the plan has no such axis: add it", op.Axis)
		}
	}
	return nil
}

// errorAt is an error that says where it is.
func (p *Plan) errorAt(rank, at int, format string, args ...any) error {
	op := p.Ranks[rank][at]
	return fmt.Errorf("step: rank %d, position %d, %v: %w", rank, at, p.Text(op), fmt.Errorf(format, args...))
}

// Versions returns the version of the block's weights that each pass uses, and the version that each update makes, by
// rank and position in its list; 0 for other operations. The first update makes version 1. See [Weights] for the rules.
//
// In PipeDream, micro-batch t uses version t-(n-1-k) at stage k of n, counted from 0, and version t-(n-1) with vertical
// sync; before the pipeline is full, version 0 (Narayanan et al. 2019, §3.3, where stages count from 1).
//
// Errors are passes that are missing, repeated or in the wrong order, and a version that the rank does not have yet
// when a forward pass needs it.
func (p *Plan) Versions() ([][]int, error) {
	if _, err := p.passes(); err != nil {
		return nil, err
	}
	return p.versionsOf()
}

func (p *Plan) versionsOf() ([][]int, error) {
	newest := make([][]int, len(p.Ranks)) // of the operation's first unit
	for r, list := range p.Ranks {
		updates, all := map[int]int{}, p.UnitsOn(r)
		for _, op := range list {
			units, version := p.unitsOf(op, all), 0
			for _, u := range units {
				if op.Kind == Update {
					updates[u]++
				}
			}
			if op.Kind.Pass() && len(units) > 0 {
				version = updates[units[0]]
			}
			newest[r] = append(newest[r], version)
		}
	}
	before := &links{}
	if p.Weights == Vertical {
		before = p.linked(true)
	}
	versions := make([][]int, len(p.Ranks))
	for r, list := range p.Ranks {
		began := map[[2]int]int{} // versions by block and micro-batch
		for i, op := range list {
			version, key := newest[r][i], [2]int{op.Block, op.Micro}
			if op.Kind == Forward {
				switch p.Weights {
				case Flush:
					version = 0
				case Double:
					version = max(op.Micro/p.Every-1, 0)
				case Vertical: // that of the first block
					at := place{int32(r), int32(i)}
					for before.from[at.rank][at.at] != nowhere {
						at = before.from[at.rank][at.at]
					}
					version = newest[at.rank][at.at]
				}
				if began[key] = version; version > newest[r][i] {
					return nil, p.errorAt(r, i, "it needs version %d of the weights, and the rank has only version %d "+
						"by then: move it after an update of block %d", version, newest[r][i], op.Block)
				}
			} else if op.Kind.Pass() && op.Kind != Update {
				version = began[key]
			}
			versions[r] = append(versions[r], version)
		}
	}
	return versions, nil
}

// WeightVersions returns, for each rank and unit, the maximal number of versions of the weights that it stores at a
// time. A version is stored from the update that makes it until the next update, and as long as later passes use it.
// Errors are those of [Plan.Versions].
func (p *Plan) WeightVersions() ([]map[int]int, error) {
	versions, err := p.Versions()
	if err != nil {
		return nil, err
	}
	kept := make([]map[int]int, len(p.Ranks))
	for r, list := range p.Ranks {
		kept[r] = map[int]int{}
		later, all := map[int]map[int]bool{}, p.UnitsOn(r) // by unit, the versions that later passes use
		for i, op := range slices.Backward(list) {
			if !op.Kind.Pass() {
				continue
			}
			for _, u := range p.unitsOf(op, all) {
				if later[u] == nil {
					later[u] = map[int]bool{}
				}
				if later[u][versions[r][i]] = true; op.Kind == Update { // beside the version that it makes
					kept[r][u] = max(kept[r][u], len(later[u]))
					delete(later[u], versions[r][i]) // it does not exist before the update
				}
				kept[r][u] = max(kept[r][u], 1)
			}
		}
	}
	return kept, nil
}
