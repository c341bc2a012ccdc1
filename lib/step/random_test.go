package step

import (
	"math/rand/v2"
	"slices"
)

// randomSchedule plays a random order of passes on a random placement. Blocks of synchronous ones may be on several
// ranks.
func randomSchedule(random *rand.Rand) *Plan {
	p := &Plan{Name: "random", Micro: 1 + random.IntN(4), Weights: Flush, Ranks: make([][]Op, 1+random.IntN(3))}
	p.Blocks, p.Units = Blocks(1 + random.IntN(4))
	p.Every = p.Micro
	several := random.IntN(2) == 0
	if !several && random.IntN(3) == 0 {
		p.Weights, p.Every = Stash, 1
	}
	on, split := make([][]int, len(p.Blocks)), make([][]bool, len(p.Blocks)) // by block and micro-batch
	for b := range on {
		home := random.IntN(len(p.Ranks))
		for range p.Micro {
			if several {
				home = random.IntN(len(p.Ranks))
			}
			on[b], split[b] = append(on[b], home), append(split[b], random.IntN(2) == 0)
		}
	}
	done := map[Op]bool{}
	for {
		var able []Op
		for b := range p.Blocks {
			order := true // of gradients, on the rank that sums them
			for m := range p.Micro {
				op := func(k Kind, b int) Op { return Op{Kind: k, Block: b, Micro: m} }
				has := func(k Kind) bool { return done[op(k, b)] }
				back := b == len(p.Blocks)-1 || done[op(Backward, b+1)] || done[op(InputGrad, b+1)]
				switch {
				case !has(Forward):
					if b == 0 || done[op(Forward, b-1)] {
						able = append(able, op(Forward, b))
					}
				case split[b][m] && !has(InputGrad):
					if back {
						able = append(able, op(InputGrad, b))
					}
				case split[b][m] && !has(WeightGrad):
					if order {
						able = append(able, op(WeightGrad, b))
					}
				case !split[b][m] && !has(Backward):
					if order && back {
						able = append(able, op(Backward, b))
					}
				}
				order = order && (has(Backward) || has(WeightGrad))
			}
		}
		if len(able) == 0 {
			break
		}
		op := able[random.IntN(len(able))]
		done[op] = true
		r := on[op.Block][op.Micro]
		p.Ranks[r] = append(p.Ranks[r], op)
		if p.Weights == Stash && (op.Kind == Backward || op.Kind == WeightGrad) {
			p.Ranks[r] = append(p.Ranks[r], Op{Kind: Update, Unit: op.Block, Micro: op.Micro})
		}
	}
	if p.Weights == Flush {
		flush(random, p)
	}
	return p
}

// flush ends each rank's list with updates.
func flush(random *rand.Rand, p *Plan) {
	for r := range p.Ranks {
		units := p.UnitsOn(r)
		if len(units) > 0 && random.IntN(2) == 0 {
			units = []int{-1}
		}
		for _, u := range units {
			p.Ranks[r] = append(p.Ranks[r], Op{Kind: Update, Unit: u, Micro: p.Micro - 1})
		}
	}
}

// randomPlan also has replicas, gathers, reductions, transfers to the host, recomputation, and all messages.
func randomPlan(random *rand.Rand) *Plan {
	p := randomSchedule(random)
	q, err := p.WithMessages()
	if err != nil {
		panic(err)
	}
	if p.Weights == Flush && random.IntN(2) == 0 {
		replicate(random, q, 0, "data", 2)
		if random.IntN(3) == 0 {
			replicate(random, q, 1, "replica", 2)
		}
		reduceAndShard(random, q)
	}
	for r := range q.Ranks {
		recompute(random, q, r)
		offload(random, q, r)
	}
	return q
}

// replicate makes n of each rank, one rank after the other or one pipeline after the other, which reduce gradients
// along an axis, the at-th of each unit.
func replicate(random *rand.Rand, p *Plan, at int, axis string, n int) {
	a, ranks, lists := Axis{Name: axis, Size: n}, len(p.Ranks), make([][]Op, n*len(p.Ranks))
	stride, each := ranks, 1
	if random.IntN(2) == 0 {
		stride, each = 1, n
	}
	for i := range p.Axes {
		var groups [][]int
		for _, g := range p.Axes[i].Groups {
			for k := range n {
				var copied []int
				for _, r := range g {
					copied = append(copied, r*each+k*stride)
				}
				groups = append(groups, copied)
			}
		}
		p.Axes[i].Groups = groups
	}
	for r, list := range p.Ranks {
		var group []int
		for k := range n {
			own := slices.Clone(list)
			for i, op := range own {
				if op.isMessage() {
					own[i].Peer = op.Peer*each + k*stride
				}
			}
			lists[r*each+k*stride] = own
			group = append(group, r*each+k*stride)
		}
		a.Groups = append(a.Groups, group)
	}
	p.Axes, p.Ranks = append(p.Axes, a), lists
	for u := range p.Units {
		p.Units[u].Reduce = slices.Insert(slices.Clone(p.Units[u].Reduce), at, axis)
	}
}

// insert puts operations at a position of a list.
func insert(p *Plan, r, at int, ops ...Op) {
	p.Ranks[r] = slices.Insert(slices.Clone(p.Ranks[r]), at, ops...)
}

// replicasOf are the ranks that do the same as a rank, along the plan's axes data and replica.
func replicasOf(p *Plan, r int) []int {
	ranks := []int{r}
	for _, name := range []string{"data", "replica"} {
		if a, ok := p.Axis(name); ok {
			var more []int
			for _, q := range ranks {
				more = append(more, a.Group(q)...)
			}
			ranks = more
		}
	}
	slices.Sort(ranks)
	return ranks
}

// reduceAndShard puts the reduces along the axes of replicas, and the gathers of sharded units.
func reduceAndShard(random *rand.Rand, p *Plan) {
	each := random.IntN(2) == 0 // a reduce for each gradient, along the first axis
	for u := range p.Units {
		zero := random.IntN(4)
		if zero > 0 {
			p.Units[u].Shard = "data"
		}
		for r := range p.Ranks {
			if ranks := replicasOf(p, r); ranks[0] == r && slices.Contains(p.UnitsOn(r), u) {
				list := shard(random, p, r, u, zero, each)
				for _, q := range ranks {
					p.Ranks[q] = merged(p.Ranks[q], list, u)
				}
			}
		}
	}
}

// shard returns a rank's list with what a unit needs.
func shard(random *rand.Rand, p *Plan, r, u, zero int, each bool) (list []Op) {
	gather := Op{Kind: Gather, What: Parameters, Unit: u, Axis: "data"}
	free := Op{Kind: Free, What: Parameters, Unit: u}
	uses := func(op Op) bool {
		return op.Kind.Pass() && op.Kind != Update && slices.Contains(p.Blocks[op.Block].Units, u)
	}
	gradient := func(op Op) bool { return (op.Kind == Backward || op.Kind == WeightGrad) && uses(op) }
	whole := false
	for i, op := range p.Ranks[r] {
		if uses(op) && zero == 3 && !whole {
			list, whole = append(list, gather), true
		}
		list = append(list, op)
		more := slices.ContainsFunc(p.Ranks[r][i+1:], uses)
		if zero == 3 && whole && (!more || random.IntN(3) == 0) {
			list, whole = append(list, free), false
		}
		if gradient(op) {
			last := !slices.ContainsFunc(p.Ranks[r][i+1:], gradient)
			for k, axis := range []string{"data", "replica"} {
				if _, ok := p.Axis(axis); ok && (last || each && k == 0) {
					list = append(list, Op{Kind: Reduce, What: Gradient, Unit: u, Axis: axis})
				}
			}
		}
		if op.Kind == Update && (op.Unit == u || op.Unit < 0) && (zero == 1 || zero == 2) {
			list = append(list, gather)
		}
	}
	return list
}

// merged is the list of a replica with what the other list has of a unit besides; the two are the same but for peers.
func merged(list, other []Op, u int) (all []Op) {
	for _, op := range other {
		if own := (op.Kind == Gather || op.Kind == Free || op.Kind == Reduce) && op.Unit == u &&
			(len(list) == 0 || list[0].Kind != op.Kind || list[0].Unit != op.Unit || list[0].Axis != op.Axis); own {
			all = append(all, op)
			continue
		}
		all, list = append(all, list[0]), list[1:]
	}
	return all
}

// recompute saves nothing in some forward passes.
func recompute(random *rand.Rand, p *Plan, r int) {
	for i := len(p.Ranks[r]) - 1; i >= 0; i-- {
		if op := p.Ranks[r][i]; (op.Kind == Backward || op.Kind == InputGrad) && random.IntN(5) == 0 {
			op.Kind = Recompute
			insert(p, r, i, op)
		}
	}
}

// offload moves some inputs and states to the host and back.
func offload(random *rand.Rand, p *Plan, r int) {
	for i := len(p.Ranks[r]) - 1; i >= 0; i-- {
		op := p.Ranks[r][i]
		switch {
		case op.Kind == Forward && random.IntN(6) == 0:
			back := slices.IndexFunc(p.Ranks[r], func(o Op) bool {
				return o.Kind != Forward && o.Kind.Pass() && o.Kind != Update && o.Block == op.Block &&
					o.Micro == op.Micro
			})
			store := Op{Kind: Store, What: Activation, Block: op.Block, Micro: op.Micro}
			fetch := store
			fetch.Kind = Fetch
			if axes := p.Axes; len(axes) > 0 && random.IntN(2) == 0 { // a partitioned checkpoint
				if len(axes[0].Groups) > 0 {
					continue
				}
				store.Kind, fetch.Kind, fetch.Axis = Free, Gather, axes[0].Name
			}
			insert(p, r, i+1+random.IntN(back-i), store)
			at := slices.Index(p.Ranks[r], store)
			insert(p, r, at+1+random.IntN(back+1-at), fetch)
			if random.IntN(4) == 0 && store.Kind == Store {
				insert(p, r, at+1, Op{Kind: Wait, Of: Store, What: Activation, Block: op.Block, Micro: op.Micro})
			}
		case op.Kind == Update && op.Unit >= 0 && p.Weights == Flush && random.IntN(4) == 0:
			store, fetch := Op{Kind: Store, What: Gradient, Unit: op.Unit}, Op{Kind: Fetch, What: Parameters,
				Unit: op.Unit}
			p.Ranks[r] = slices.Clone(p.Ranks[r])
			p.Ranks[r][i].Kind = HostUpdate
			until := slices.IndexFunc(p.Ranks[r][i:],
				func(o Op) bool { return o.Kind == Gather && o.Unit == op.Unit && o.What == Parameters })
			if until < 0 {
				until = len(p.Ranks[r]) - i
			}
			insert(p, r, i+1+random.IntN(until), fetch)
			insert(p, r, i, store)
		case op.Kind == Update && op.Unit >= 0 && p.Every == p.Micro && random.IntN(4) == 0:
			fetch := Op{Kind: Fetch, What: State, Unit: op.Unit}
			store := fetch
			store.Kind = Store
			insert(p, r, i+1, store)
			insert(p, r, random.IntN(i+1), fetch)
			i++
		}
	}
}

// pairUp pairs some passes, where the second checker allows it, and returns how many.
func pairUp(random *rand.Rand, p *Plan) (n int) {
	for r := range p.Ranks {
		p.Ranks[r] = slices.Clone(p.Ranks[r])
		for i := range p.Ranks[r] {
			op := &p.Ranks[r][i]
			if _, pass := passRules[op.Kind]; !pass || op.Kind == Forward || random.IntN(3) == 0 {
				continue
			}
			q := p
			if op.Paired = true; !p.hasMessages() {
				q, _ = p.WithMessages()
			}
			if op.Paired = q != nil && dumbValid(q); op.Paired {
				n++
			}
		}
	}
	return n
}

// mutate changes a plan a little.
func mutate(random *rand.Rand, p *Plan) {
	r := random.IntN(len(p.Ranks))
	list := slices.Clone(p.Ranks[r])
	if len(list) == 0 {
		return
	}
	i, j := random.IntN(len(list)), random.IntN(len(list))
	if random.IntN(2) == 0 { // close by, where more stays possible
		j = min(i+1+random.IntN(3), len(list)-1)
	}
	switch random.IntN(9) {
	case 0, 1:
		p.Ranks[r] = slices.Delete(list, i, i+1)
	case 2:
		p.Ranks[r] = slices.Insert(list, j, list[i])
	case 3, 4:
		list[i], list[j] = list[j], list[i]
		p.Ranks[r] = list
	case 5, 6:
		op := list[i]
		p.Ranks[r] = slices.Insert(slices.Delete(list, i, i+1), min(j, len(list)-1), op)
	case 7:
		to := random.IntN(len(p.Ranks))
		p.Ranks[to] = append(slices.Clone(p.Ranks[to]), list[i])
	case 8:
		list[i].Paired = !list[i].Paired
		p.Ranks[r] = list
	}
}
