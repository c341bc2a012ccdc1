package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// The largest plans that New makes. Some have as many steps as ranks², those of AllToAll as many as ranks³.
const (
	maxRanks    = 1024
	maxAllToAll = 128
)

// Option is a choice that a plan leaves open.
type Option func(*choices) error

type choices struct{ root, group int } // a group of 0 is the default

// Root sets the rank that a Broadcast or Scatter starts from and a Reduce or Gather ends at. The default is rank 0.
func Root(rank int) Option {
	return func(c *choices) error { c.root = rank; return nil }
}

// GroupsOf sets the number of neighbouring ranks in a group (a host, say) of the algorithm Hierarchical: ranks 0 to n-1
// are the first, and the last group may be smaller. The default is the smallest divisor of the number of ranks from its
// square root up or, for a prime number, that root rounded up. Other algorithms ignore it.
func GroupsOf(n int) Option {
	return func(c *choices) error {
		if n < 1 {
			return fmt.Errorf("plan: groups of %d ranks: a group has at least 1", n)
		}
		c.group = n
		return nil
	}
}

// New makes the plan of an operation by an algorithm.
//
// All ranks get bitwise equal results of an AllReduce, by any algorithm: see [Plan.SameBits]. A Reduce changes only the
// root's data. After any other operation a rank's data outside the result is undefined.
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
	b := &builder{
		Plan:   &Plan{Op: op, Algorithm: algorithm, Ranks: ranks, Root: c.root, Steps: make([][]Step, ranks)},
		groups: groups{ranks, min(c.group, ranks)},
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

// recipes write the plans. Most are made of one schedule that spreads
// data, and its mirror image, that brings data together (see [schedule.mirror]).
var recipes = map[Op]map[Algorithm]func(b *builder){
	Broadcast: {
		Naive:           by(1, nil, star1),
		Ring:            by(each, nil, of(chain)),
		Tree:            by(1, nil, tree1),
		HalvingDoubling: by(each, nil, scatterThenAllGather),
		Hierarchical:    func(b *builder) { b.cut(1); b.spread(b.groups.broadcast(b.Root)) },
	},
	Reduce: {
		Naive:           by(1, starIn1, nil),
		Ring:            by(each, mirror(of(chain)), nil),
		Tree:            by(1, mirror(tree1), nil),
		HalvingDoubling: by(each, mirror(of(doubling)), mirror(treeScatter)), // Rabenseifner 2004
		Hierarchical:    func(b *builder) { b.cut(1); b.reduce(b.groups.broadcast(b.Root).mirror()) },
	},
	AllReduce: { // those of two halves sum each chunk on one rank, so that all ranks get the same bits
		Naive:             by(1, starIn1, star1),
		Ring:              by(each, mirror(ringBack), ringOn),
		OneShot:           (*builder).oneShotAllReduce,
		Tree:              by(1, mirror(tree1), tree1),
		RecursiveDoubling: (*builder).recursiveDoublingAllReduce,
		HalvingDoubling:   by(each, mirror(of(doubling)), of(doubling)),
		BidirectionalRing: by(each, mirror(of(bothWays)), of(bothWays)),
		Hierarchical:      by(each, mirror(groups.allGather), groups.allGather),
	},
	Gather: {
		Naive: by(each, nil, func(g groups) schedule { return starIn(g.ranks, own) }),
		Tree:  by(each, nil, mirror(treeScatter)),
	},
	Scatter: {
		Naive: by(each, nil, func(g groups) schedule { return star(g.ranks, own) }),
		Tree:  by(each, nil, treeScatter),
	},
	AllGather: {
		Naive: by(each, nil, func(g groups) schedule {
			return append(starIn(g.ranks, own), star(g.ranks, full(g.ranks))...)
		}),
		Ring:              by(each, nil, ringOn),
		OneShot:           by(each, nil, of(allAtOnce)),
		RecursiveDoubling: by(each, nil, of(doubling)),
		BidirectionalRing: by(each, nil, of(bothWays)),
		Hierarchical:      by(each, nil, groups.allGather),
	},
	ReduceScatter: {
		Naive: by(each, func(g groups) schedule { return starIn(g.ranks, full(g.ranks)) },
			func(g groups) schedule { return star(g.ranks, own) }),
		Ring:              by(each, mirror(ringBack), nil),
		OneShot:           (*builder).oneShotReduceScatter,
		HalvingDoubling:   by(each, mirror(of(doubling)), nil),
		BidirectionalRing: by(each, mirror(of(bothWays)), nil),
		Hierarchical:      by(each, mirror(groups.allGather), nil),
	},
	AllToAll: {
		Naive:             func(b *builder) { b.route(pairwise(b.Ranks)) },
		Ring:              func(b *builder) { b.route(aroundTheRing(b.Ranks)) },
		OneShot:           func(b *builder) { b.route(directly(b.Ranks)) },
		RecursiveDoubling: func(b *builder) { b.route(bruck(b.Ranks)) },
		Hierarchical:      func(b *builder) { b.route(b.groups.allToAll()) },
	},
}

// shape makes a schedule for ranks, and for groups of them where those matter.
type shape func(groups) schedule

var (
	star1       shape = func(g groups) schedule { return star(g.ranks, one) }
	starIn1     shape = func(g groups) schedule { return starIn(g.ranks, one) }
	tree1       shape = func(g groups) schedule { return binomial(g.ranks, one) }
	treeScatter shape = func(g groups) schedule { return binomial(g.ranks, subtree) }
	ringOn      shape = func(g groups) schedule { return ring(g.ranks, 1) }
	ringBack    shape = func(g groups) schedule { return ring(g.ranks, -1) }
)

// scatterThenAllGather is the broadcast of long vectors: a binomial tree scatters the chunks, and an all-gather gives
// them to all. A rank sends about twice the data whatever the number of ranks, where a tree's root sends it log2 N
// times (Barnett, Gupta, Payne, Shuler, van de Geijn & Watts 1994, "Interprocessor collective communication library";
// Thakur, Rabenseifner & Gropp 2005). Ranks receive the few chunks that they already hold for their subtree a second
// time.
func scatterThenAllGather(g groups) schedule {
	return append(binomial(g.ranks, subtree), doubling(g.ranks)...)
}

func of(s func(ranks int) schedule) shape { return func(g groups) schedule { return s(g.ranks) } }

func mirror(s shape) shape { return func(g groups) schedule { return s(g).mirror() } }

// each cuts the data in one chunk for each rank.
const each = 0

// by writes a plan of messages that are added to what the receiver has, and then of
// messages that replace it, for data in that number of chunks. Either may be nil.
func by(chunks int, added, replacing shape) func(b *builder) {
	return func(b *builder) {
		b.cut(cmp.Or(chunks, b.Ranks))
		if added != nil {
			b.reduce(b.fromRoot(added(b.groups)))
		}
		if replacing != nil {
			b.spread(b.fromRoot(replacing(b.groups)))
		}
	}
}
