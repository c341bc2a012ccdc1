package expert

import (
	"slices"

	"github.com/shardbook/shardbook/lib/step"
)

// Apart rewrites a plan so that experts are units of their own, whose gradients other devices share than those of the
// rest of a block. Members are the parameters of each unit, and is says which of them belong to experts. It returns the
// new members, and the units of experts.
func Apart(p *step.Plan, members [][]int, is func(parameter int) bool) (q *step.Plan, of [][]int, experts []int) {
	q, of = p.Clone(), slices.Clone(members)
	for u, all := range members {
		own := slices.DeleteFunc(slices.Clone(all), func(at int) bool { return !is(at) })
		if len(own) == 0 {
			continue
		}
		unit := q.Units[u]
		unit.Name += ".experts"
		of[u] = slices.DeleteFunc(slices.Clone(all), is)
		experts, q.Units, of = append(experts, len(q.Units)), append(q.Units, unit), append(of, own)
		for b, block := range q.Blocks {
			if slices.Contains(block.Units, u) {
				q.Blocks[b].Units = append(slices.Clone(block.Units), len(q.Units)-1)
			}
		}
	}
	return q, of, experts
}

// Spread rewrites a plan of data-parallel ranks so that n neighbours along an axis of it have different experts: the
// gradients of the units of experts are reduced only over ranks with the same ones. They get an axis of their own,
// within, between whose ranks tokens are sent, and another one, same, that joins the ranks with the same experts.
func Spread(p *step.Plan, units []int, along, within, same string, n int) *step.Plan {
	q := p.Clone()
	all, _ := q.Axis(along)
	experts, copies := step.Axis{Name: within, Size: n}, step.Axis{Name: same, Size: all.Size / n}
	for _, group := range all.Groups {
		experts.Groups = slices.AppendSeq(experts.Groups, slices.Chunk(group, n))
		for i := range n {
			var ranks []int
			for k := i; k < len(group); k += n {
				ranks = append(ranks, group[k])
			}
			copies.Groups = append(copies.Groups, ranks)
		}
	}
	q.Axes = append(q.Axes, experts)
	if copies.Size > 1 {
		q.Axes = append(q.Axes, copies)
	}
	for _, u := range units {
		unit := &q.Units[u]
		unit.Apart, unit.Reduce = within, slices.Clone(unit.Reduce)
		at := slices.Index(unit.Reduce, along)
		if unit.Reduce[at] = same; copies.Size == 1 {
			unit.Reduce = slices.Delete(unit.Reduce, at, at+1)
		}
	}
	return q
}
