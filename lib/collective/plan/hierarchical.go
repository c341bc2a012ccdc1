package plan

import "slices"

// groups are hosts, say: neighbouring ranks with fast links among them. Group h has
// the ranks from h·size on; the last may have fewer than size.
type groups struct{ ranks, size int }

// count is the number of groups.
func (g groups) count() int { return (g.ranks + g.size - 1) / g.size }

// width is the number of ranks in a group.
func (g groups) width(group int) int { return min(g.size, g.ranks-group*g.size) }

// member is the rank in a group that deals with what belongs to place j of the
// groups. A smaller group's ranks deal with the places it lacks as well.
func (g groups) member(group, j int) int { return group*g.size + j%g.width(group) }

// allGather takes two steps. First each chunk goes round the groups, from the rank it belongs to on to the rank of the
// same place in the next group; then each group's ranks pass what they have got round among themselves. A rank receives
// each other chunk once, and of those only as many from another group as there are other groups: the rest stays inside.
//
// The mirror image is a reduce-scatter, inside the groups first, then between them. One after the other they make the
// all-reduce of hosts with fast links inside: reduce-scatter inside, all-reduce between, all-gather inside (Mikami et
// al. 2018, "Massively distributed SGD", call it 2D-torus all-reduce).
func (g groups) allGather() schedule {
	count := g.count()
	between, inside := make(schedule, count-1), make(schedule, g.size-1)
	for k := range between {
		for c := range g.ranks {
			home, j := c/g.size, c%g.size
			from, to := (home+k)%count, (home+k+1)%count
			between[k] = append(between[k], move{g.member(from, j), g.member(to, j), []int{c}})
		}
	}
	for group := range count {
		for k := range g.width(group) - 1 {
			for c := range g.ranks {
				// Where the chunk came in, modulo the group's width, as member takes it.
				j := c % g.size % g.width(group)
				inside[k] = append(inside[k], move{g.member(group, j+k), g.member(group, j+k+1), []int{c}})
			}
		}
	}
	return append(between, inside...).merge()
}

// broadcast sends the data along a binomial tree of the groups' first ranks, and then along one inside each group, so
// that it enters every group once (Karonis et al. 2000, "Exploiting hierarchy in parallel computer networks to optimize
// collective operation performance"). The root stands first in its group.
func (g groups) broadcast(root int) schedule {
	home := root / g.size
	first := func(group int) int {
		if group == home {
			return root % g.size
		}
		return 0
	}
	var s schedule
	for _, between := range binomial(g.count(), one) {
		var round []move
		for _, m := range between {
			from, to := (m.from+home)%g.count(), (m.to+home)%g.count()
			round = append(round, move{g.member(from, first(from)), g.member(to, first(to)), m.chunks})
		}
		s = append(s, round)
	}
	inside := make(schedule, len(binomial(g.size, one)))
	for group := range g.count() {
		for i, round := range binomial(g.width(group), one) {
			for _, m := range round {
				from, to := g.member(group, first(group)+m.from), g.member(group, first(group)+m.to)
				inside[i] = append(inside[i], move{from, to, m.chunks})
			}
		}
	}
	return append(s, inside...)
}

// allToAll takes two rounds: each rank first gives the blocks for all ranks of one place to the rank of that place in
// its own group, which then sends each group its blocks. Between groups go few long messages instead of many short
// ones, with the same bytes; inside there are more bytes (Rajbhandari et al. 2022, "DeepSpeed-MoE").
func (g groups) allToAll() [][]hop {
	s := make([][]hop, 2)
	for origin := range g.ranks {
		group := origin / g.size
		for k := 1; k < g.ranks; k++ {
			target := (origin + k) % g.ranks
			via := g.member(group, target%g.size)
			if via != origin {
				s[0] = append(s[0], hop{origin, via, block{origin, target}})
			}
			if via != target {
				s[1] = append(s[1], hop{via, target, block{origin, target}})
			}
		}
	}
	return slices.DeleteFunc(s, func(round []hop) bool { return len(round) == 0 })
}
