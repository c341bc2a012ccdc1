package ddp

import (
	"fmt"
	"slices"

	"github.com/shardbook/shardbook/lib/step"
)

// IntoBuckets rewrites a plan so that gradients are reduced in buckets of at most limit bytes, one message each; a
// larger gradient gets a bucket of its own (Li et al. 2020, §3.2.3). The first bucket has the last parameters, whose
// gradients the backward pass computes first. With limit 0 each parameter has its own bucket.
//
// Members are the indices of each unit's parameters, and bytes the sizes of all parameters' gradients. It returns the
// plan and the members of the buckets, its new units. Parameters of different ranks do not share a bucket. The plan's
// units must not be sharded.
func IntoBuckets(p *step.Plan, members [][]int, bytes []int64, limit int64) (*step.Plan, [][]int) {
	q := p.Clone()
	q.Units = nil
	var buckets [][]int
	var sizes []int64
	open := map[string]int{} // the last bucket, by ranks and axes
	bucketOf := map[int]int{}
	ranks := make([]string, len(p.Units))
	for r := range p.Ranks {
		for _, u := range p.UnitsOn(r) {
			ranks[u] += fmt.Sprint(r, " ")
		}
	}
	for u := len(p.Units) - 1; u >= 0; u-- {
		unit := p.Units[u]
		for _, at := range slices.Backward(members[u]) {
			key := fmt.Sprint(ranks[u], unit.Reduce, unit.Apart)
			b, ok := open[key]
			if !ok || sizes[b]+bytes[at] > limit {
				b = len(q.Units)
				open[key] = b
				q.Units = append(q.Units, step.Unit{Name: fmt.Sprint("bucket", b), Reduce: unit.Reduce,
					Apart: unit.Apart})
				buckets, sizes = append(buckets, nil), append(sizes, 0)
			}
			buckets[b], sizes[b] = append(buckets[b], at), sizes[b]+bytes[at]
			bucketOf[at] = b
		}
	}
	for i, block := range p.Blocks {
		var units []int
		for _, u := range block.Units {
			for _, at := range members[u] {
				if !slices.Contains(units, bucketOf[at]) {
					units = append(units, bucketOf[at])
				}
			}
		}
		slices.Sort(units)
		q.Blocks[i].Units = units
	}
	return q, buckets
}
