package parallel

import (
	"slices"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/precision"
)

// sums adds a micro-batch's gradients to those before: of each device its own, which nobody has reduced yet, or from ZeRO-2 on the
// shards of their sums over the devices.
type sums struct {
	*stage
	of []*graph.Node // in the order of stage.params
}

// newSums takes the sums so far from the front of in.
func newSums(s *stage, in []*graph.Node) *sums {
	all := &sums{s, nil}
	for k, at := range s.params {
		all.of = append(all.of, graph.Reshape(in[k], s.sumDims(at)...))
	}
	return all
}

// sumDims are the dimensions of the sums of a parameter's gradients on a device.
func (o *own) sumDims(at int) []int {
	if o.zero(2) {
		return []int{o.lengths[at]}
	}
	return o.tree[at].Shape.Dimensions
}

// add adds the gradients of a block's parameters, and returns one of the results, or nil.
func (s *sums) add(block int, grads []*graph.Node) (one *graph.Node) {
	places := s.homes[block]
	grads = precision.Cast(grads, s.policy.Reduce)
	if s.zero(2) {
		grads = s.scatter(places, grads)
	}
	for k, at := range places {
		sum := &s.of[slices.Index(s.params, at)]
		*sum = graph.Add(*sum, grads[k])
		one = *sum
	}
	return one
}

// out returns the sums; scalars as vectors.
func (s *sums) out() (all []*graph.Node) {
	for _, sum := range s.of {
		all = append(all, vector(sum))
	}
	return all
}

func vector(x *graph.Node) *graph.Node {
	if x.IsScalar() {
		return graph.Reshape(x, 1)
	}
	return x
}

// recordOf describes values by block.
func recordOf(values [][]*graph.Node) *record {
	r := &record{}
	for _, of := range values {
		r.counts = append(r.counts, len(of))
		for _, x := range of {
			r.scalars = append(r.scalars, x.IsScalar())
		}
	}
	return r
}

// out lists the values; scalars as vectors.
func (r *record) out(values [][]*graph.Node) (all []*graph.Node) {
	for _, x := range slices.Concat(values...) {
		all = append(all, vector(x))
	}
	return all
}

// in takes the values from the front of in.
func (r *record) in(in []*graph.Node) (values [][]*graph.Node) {
	next := 0
	for _, n := range r.counts {
		var of []*graph.Node
		for range n {
			x := in[next]
			if r.scalars[next] {
				x = graph.Reshape(x)
			}
			of, next = append(of, x), next+1
		}
		values = append(values, of)
	}
	return values
}
