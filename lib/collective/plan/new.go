package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// The largest plans that New makes. Some have as many steps as ranks², those of
// AllToAll as many as ranks³.
const (
	maxRanks    = 1024
	maxAllToAll = 128
	maxPieces   = 1024
)

// Option is a choice that a plan leaves open.
type Option func(*choices) error

type choices struct{ root, group, pieces int } // group and pieces: 0 is the default

// Root is the rank that a Broadcast or Scatter starts from and a Reduce or Gather
// ends at. Without it that is rank 0.
func Root(rank int) Option {
	return func(c *choices) error { c.root = rank; return nil }
}

// GroupsOf sets how many neighbouring ranks are a group (a host, say) of the
// algorithm Hierarchical: ranks 0 to n-1 are the first, and the last group may be
// smaller. Without it the size is the smallest divisor of the number of ranks from
// its square root up or, for a prime number, that root rounded up. Other algorithms
// have no groups and take no notice.
func GroupsOf(n int) Option {
	return func(c *choices) error {
		if n < 1 {
			return fmt.Errorf("plan: groups of %d ranks: a group has at least 1", n)
		}
		c.group = n
		return nil
	}
}

// Pieces sets into how many chunks the ring algorithm of Broadcast and Reduce cuts
// the data: more pieces fill the pipeline sooner, and each costs a message. Without
// it there is one for each rank. Other plans are cut as they need, and take no notice.
func Pieces(n int) Option {
	return func(c *choices) error {
		if n < 1 || n > maxPieces {
			return fmt.Errorf("plan: %d pieces: want 1 to %d", n, maxPieces)
		}
		c.pieces = n
		return nil
	}
}

// New makes the plan of an operation by an algorithm.
//
// All ranks of an AllReduce end with the same bits, whatever the algorithm, also
// where addition rounds: see [Plan.SameBits]. Only the root's data changes in a
// Reduce. In the other operations a rank's data outside the result is of no meaning
// afterwards.
//
// It returns an error if the operation has no such algorithm, and for fewer than 1
// or more than 1024 ranks (128 for AllToAll, whose plans grow with the third power).
func New(op Op, algorithm Algorithm, ranks int, options ...Option) (*Plan, error) {
	recipe := recipes[op][algorithm]
	if recipe == nil {
		return nil, fmt.Errorf("plan: %v has no algorithm %v, it has %v", op, algorithm, Algorithms(op))
	}
	most := maxRanks
	if op == AllToAll {
		most = maxAllToAll
	}
	if ranks < 1 || ranks > most {
		return nil, fmt.Errorf("plan: %v of %d ranks: want 1 to %d", op, ranks, most)
	}
	var c choices
	for _, option := range options {
		if option == nil {
			continue
		}
		if err := option(&c); err != nil {
			return nil, err
		}
	}
	if c.root < 0 || c.root >= ranks {
		return nil, fmt.Errorf("plan: root %d of %d ranks: want 0 to %d", c.root, ranks, ranks-1)
	}
	if c.root != 0 && !op.rooted() {
		return nil, fmt.Errorf("plan: root %d for %v, which has no root: leave Root out", c.root, op)
	}
	if c.group == 0 {
		c.group = groupSize(ranks)
	}
	if c.pieces == 0 {
		c.pieces = ranks
	}
	b := &builder{
		Plan:   &Plan{Op: op, Algorithm: algorithm, Ranks: ranks, Root: c.root, Steps: make([][]Step, ranks)},
		group:  min(c.group, ranks),
		pieces: c.pieces,
	}
	recipe(b)
	for _, steps := range b.Steps { // sends, then receives, then the local steps in their order
		slices.SortStableFunc(steps, func(s, t Step) int {
			return cmp.Or(cmp.Compare(s.Round, t.Round), cmp.Compare(min(s.Action, Add), min(t.Action, Add)))
		})
	}
	return b.Plan, nil
}

// groupSize is the default of GroupsOf.
func groupSize(ranks int) int {
	root := int(math.Ceil(math.Sqrt(float64(ranks))))
	for size := root; size < ranks; size++ {
		if ranks%size == 0 {
			return size
		}
	}
	return root
}

// recipes has how each plan is written. Most are made of one schedule that spreads
// data, and its mirror image, that brings data together (see [schedule.mirror]).
var recipes = map[Op]map[Algorithm]func(b *builder){
	Broadcast: {
		Naive:           func(b *builder) { b.cut(1); b.spread(b.fromRoot(star(b.Ranks, whole(1)))) },
		Ring:            func(b *builder) { b.cut(b.pieces); b.spread(b.fromRoot(chain(b.Ranks, b.pieces))) },
		Tree:            func(b *builder) { b.cut(1); b.spread(b.fromRoot(binomial(b.Ranks, whole(1)))) },
		HalvingDoubling: (*builder).scatterThenAllGather,
		Hierarchical:    func(b *builder) { b.cut(1); b.spread(b.groups().broadcast(b.Root)) },
	},
	Reduce: {
		Naive:           func(b *builder) { b.cut(1); b.reduce(b.fromRoot(starIn(b.Ranks, whole(1)))) },
		Ring:            func(b *builder) { b.cut(b.pieces); b.reduce(b.fromRoot(chain(b.Ranks, b.pieces).mirror())) },
		Tree:            func(b *builder) { b.cut(1); b.reduce(b.fromRoot(binomial(b.Ranks, whole(1)).mirror())) },
		HalvingDoubling: (*builder).reduceScatterThenGather,
		Hierarchical:    func(b *builder) { b.cut(1); b.reduce(b.groups().broadcast(b.Root).mirror()) },
	},
	AllReduce: {
		Naive: func(b *builder) {
			b.cut(1)
			b.reduce(starIn(b.Ranks, whole(1)))
			b.spread(star(b.Ranks, whole(1)))
		},
		Ring:    func(b *builder) { b.reduceScatterThenAllGather(ring(b.Ranks, -1), ring(b.Ranks, 1)) },
		OneShot: (*builder).oneShotAllReduce,
		Tree: func(b *builder) {
			b.cut(1)
			b.reduce(binomial(b.Ranks, whole(1)).mirror())
			b.spread(binomial(b.Ranks, whole(1)))
		},
		RecursiveDoubling: (*builder).recursiveDoublingAllReduce,
		HalvingDoubling:   func(b *builder) { b.reduceScatterThenAllGather(doubling(b.Ranks), doubling(b.Ranks)) },
		BidirectionalRing: func(b *builder) { b.reduceScatterThenAllGather(bothWays(b.Ranks), bothWays(b.Ranks)) },
		Hierarchical: func(b *builder) {
			b.reduceScatterThenAllGather(b.groups().allGather(), b.groups().allGather())
		},
	},
	Gather: {
		Naive: func(b *builder) { b.cut(b.Ranks); b.spread(b.fromRoot(starIn(b.Ranks, own))) },
		Tree:  func(b *builder) { b.cut(b.Ranks); b.spread(b.fromRoot(binomial(b.Ranks, subtree).mirror())) },
	},
	Scatter: {
		Naive: func(b *builder) { b.cut(b.Ranks); b.spread(b.fromRoot(star(b.Ranks, own))) },
		Tree:  func(b *builder) { b.cut(b.Ranks); b.spread(b.fromRoot(binomial(b.Ranks, subtree))) },
	},
	AllGather: {
		Naive: func(b *builder) {
			b.cut(b.Ranks)
			b.spread(starIn(b.Ranks, own))
			b.spread(star(b.Ranks, whole(b.Ranks)))
		},
		Ring:              func(b *builder) { b.cut(b.Ranks); b.spread(ring(b.Ranks, 1)) },
		OneShot:           func(b *builder) { b.cut(b.Ranks); b.spread(allAtOnce(b.Ranks)) },
		RecursiveDoubling: func(b *builder) { b.cut(b.Ranks); b.spread(doubling(b.Ranks)) },
		BidirectionalRing: func(b *builder) { b.cut(b.Ranks); b.spread(bothWays(b.Ranks)) },
		Hierarchical:      func(b *builder) { b.cut(b.Ranks); b.spread(b.groups().allGather()) },
	},
	ReduceScatter: {
		Naive: func(b *builder) {
			b.cut(b.Ranks)
			b.reduce(starIn(b.Ranks, whole(b.Ranks)))
			b.spread(star(b.Ranks, own))
		},
		Ring:              func(b *builder) { b.cut(b.Ranks); b.reduce(ring(b.Ranks, -1).mirror()) },
		OneShot:           (*builder).oneShotReduceScatter,
		HalvingDoubling:   func(b *builder) { b.cut(b.Ranks); b.reduce(doubling(b.Ranks).mirror()) },
		BidirectionalRing: func(b *builder) { b.cut(b.Ranks); b.reduce(bothWays(b.Ranks).mirror()) },
		Hierarchical:      func(b *builder) { b.cut(b.Ranks); b.reduce(b.groups().allGather().mirror()) },
	},
	AllToAll: {
		Naive:             func(b *builder) { b.route(pairwise(b.Ranks)) },
		Ring:              func(b *builder) { b.route(aroundTheRing(b.Ranks)) },
		OneShot:           func(b *builder) { b.route(directly(b.Ranks)) },
		RecursiveDoubling: func(b *builder) { b.route(bruck(b.Ranks)) },
		Hierarchical:      func(b *builder) { b.route(b.groups().allToAll()) },
	},
}
