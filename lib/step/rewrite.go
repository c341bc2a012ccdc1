package step

import (
	"cmp"
	"fmt"
	"slices"
)

// Clone returns a copy of the plan whose ranks' lists can be changed.
func (p *Plan) Clone() *Plan {
	q := *p
	q.Blocks, q.Units, q.Axes = slices.Clone(p.Blocks), slices.Clone(p.Units), slices.Clone(p.Axes)
	q.Ranks = make([][]Op, len(p.Ranks))
	for r, list := range p.Ranks {
		q.Ranks[r] = slices.Clone(list)
	}
	return &q
}

// Insert inserts operations into a rank's list: around returns what to put before and after each operation. In a pair
// only sends and recomputations are put there, and other operations before or after the pair.
func (p *Plan) Insert(rank int, around func(i int, op Op) (before, behind []Op)) {
	var list, after []Op
	pairs, from := p.Pairs(rank), 0
	for i, op := range p.Ranks[rank] {
		before, behind := around(i, op)
		pair := pairs[i]
		if i == pair.From || pair.To == 0 {
			from = len(list)
		}
		for _, b := range before {
			if b.Kind == Recompute {
				b.Paired = op.Paired
				list = append(list, b)
				continue
			}
			list = slices.Insert(list, from, b)
			from++
		}
		list = append(list, op)
		for _, b := range behind {
			if i+1 < pair.To && b.Kind == Send {
				list = append(list, b)
			} else {
				after = append(after, b)
			}
		}
		if i+1 >= pair.To {
			list, after = append(list, after...), nil
		}
	}
	p.Ranks[rank] = list
}

// Completed is a unit whose gradients of a micro-batch are complete. Last: also those of all before the next update.
type Completed struct {
	Unit int
	Last bool
}

// Complete returns the units whose gradients are complete after a pass, by the pass's position in a rank's list.
func (p *Plan) Complete(rank int) map[int][]Completed {
	type sum struct{ unit, micro int }
	last := map[sum]int{} // position
	end := map[int]int{}  // by unit, the last pass before an update
	ends := map[[2]int]bool{}
	for i, op := range p.Ranks[rank] {
		switch op.Kind {
		case Backward, WeightGrad:
			for _, u := range p.Blocks[op.Block].Units {
				last[sum{u, op.Micro}], end[u] = i, i
			}
		case Update, HostUpdate:
			for u, at := range end {
				ends[[2]int{u, at}] = true
			}
		}
	}
	complete := map[int][]Completed{}
	for s, i := range last {
		complete[i] = append(complete[i], Completed{s.unit, ends[[2]int{s.unit, i}]})
	}
	for _, units := range complete {
		slices.SortFunc(units, func(a, b Completed) int { return cmp.Compare(a.Unit, b.Unit) })
	}
	return complete
}

// Inside adds an axis of each rank's own devices.
func (p *Plan) Inside(axis string, devices int) {
	p.Axes = append(p.Axes, Axis{Name: axis, Size: devices})
}

// Replicate returns the plan of n replicas of all ranks, each with its shard of every batch: data parallelism. Rank r
// of replica c becomes rank c·len(Ranks)+r. Each unit's gradients are to be reduced along a new last axis that joins
// the ranks with the same blocks. The axis is called name; a unit that several ranks of a replica have gets an axis
// called name and these ranks. The Reduce operations are left to other rewrites. With n = 1 only units on several ranks
// get an axis.
func (p *Plan) Replicate(n int, name string) *Plan {
	q := p.Clone()
	q.Ranks = nil
	for i := range q.Axes {
		q.Axes[i].Groups = nil
	}
	for c := range n {
		by := c * len(p.Ranks)
		for i, a := range p.Axes {
			for _, g := range a.Groups {
				q.Axes[i].Groups = append(q.Axes[i].Groups, shifted(g, by))
			}
		}
		for _, list := range p.Ranks {
			list = slices.Clone(list)
			for i := range list {
				if list[i].Kind == Send || list[i].Kind == Recv {
					list[i].Peer += by
				}
			}
			q.Ranks = append(q.Ranks, list)
		}
	}
	if n > 1 {
		all := Axis{Name: name, Size: n}
		for r := range p.Ranks {
			all.Groups = append(all.Groups, p.across([]int{r}, n))
		}
		q.Axes = append(q.Axes, all)
	}
	for u, have := range p.owners() {
		axis := name
		if len(have) > 1 && !p.joined(u, have) {
			for _, r := range have {
				axis += fmt.Sprint("-", r)
			}
			if _, ok := q.Axis(axis); !ok {
				q.Axes = append(q.Axes, Axis{Name: axis, Size: n * len(have), Groups: [][]int{p.across(have, n)}})
			}
		} else if n == 1 {
			continue
		}
		q.Units[u].Reduce = append(slices.Clone(q.Units[u].Reduce), axis)
	}
	return q
}

// owners returns the ranks that have each unit.
func (p *Plan) owners() [][]int {
	owners := make([][]int, len(p.Units))
	for r := range p.Ranks {
		for _, u := range p.UnitsOn(r) {
			owners[u] = append(owners[u], r)
		}
	}
	return owners
}

// across returns the ranks that correspond to these in all replicas.
func (p *Plan) across(ranks []int, n int) (all []int) {
	for c := range n {
		all = append(all, shifted(ranks, c*len(p.Ranks))...)
	}
	return all
}

func shifted(ranks []int, by int) []int {
	all := slices.Clone(ranks)
	for i := range all {
		all[i] += by
	}
	return all
}

// joined reports whether a unit's axes already reduce the gradients of all these ranks.
func (p *Plan) joined(unit int, ranks []int) bool {
	reached := p.reached(unit, ranks[0])
	return !slices.ContainsFunc(ranks, func(r int) bool { return !slices.Contains(reached, r) })
}
