package plan

import (
	"fmt"
	"math/bits"
)

// Formula is what an operation by an algorithm sends, worked out from N, the number
// of ranks, and n, the number of bytes, with no plan: root 0, default groups and
// pieces. It is exact also where N does not divide n. Links is nil.
//
// Where N divides n, what the busiest rank sends, and in how many rounds; L is ⌈log2 N⌉:
//
//	broadcast   naive                 (N-1)n      N-1
//	            ring                  n           2(N-1)
//	            tree                  L·n         L
//	all-reduce  naive                 (N-1)n      2(N-1)
//	            one-shot              (N-1)n      1
//	            tree                  L·n         2L
//	            recursive doubling    L·n         L        (N a power of two)
//	            ring                  2(N-1)n/N   2(N-1)
//	            bidirectional ring    2(N-1)n/N   2⌊N/2⌋
//	            halving-doubling      2(N-1)n/N   2L
//	            hierarchical          2(N-1)n/N   2(G+g-2) (G groups of g)
//	all-to-all  naive                 (N-1)n/N    N-1
//	            ring                  (N-1)n/2    N-1
//	            recursive doubling    L·n/2       L        (N a power of two)
//
// All-gather and reduce-scatter by the last four for all-reduce take half.
//
// It returns an error if the operation has no such algorithm, for negative sizes or
// fewer than 1 rank, and for hierarchical plans with a smaller last group, other than
// broadcast and reduce, for which there is no simple formula.
func Formula(op Op, algorithm Algorithm, ranks, elements, elementSize int) (Traffic, error) {
	if err := checkSize(elements, elementSize); err != nil {
		return Traffic{}, err
	}
	if !Exists(op, algorithm) {
		return Traffic{}, fmt.Errorf("plan: %v has no algorithm %v, it has %v", op, algorithm, Algorithms(op))
	}
	if ranks < 1 {
		return Traffic{}, fmt.Errorf("plan: formula for %d ranks, want at least 1", ranks)
	}
	f := forms{ranks: ranks, elements: elements, size: elementSize, group: groupSize(ranks)}
	if algorithm == Hierarchical && ranks%f.group != 0 && op != Broadcast && op != Reduce {
		return Traffic{}, fmt.Errorf("plan: no formula for hierarchical %v of %d ranks in groups of %d: count the plan",
			op, ranks, f.group)
	}
	t := f.of(op, algorithm)
	for _, load := range t.Sent {
		t.Total = t.Total.plus(load)
	}
	return t, nil
}

func (l Load) plus(m Load) Load { return Load{l.Messages + m.Messages, l.Bytes + m.Bytes} }

// forms has what the formulas depend on.
type forms struct{ ranks, elements, size, group int }

// n is the size of the data in bytes.
func (f forms) n() int { return f.elements * f.size }

// log is ⌈log2 of the number of ranks⌉.
func (f forms) log() int { return ceilLog(f.ranks) }

func ceilLog(n int) int { return bits.Len(uint(n - 1)) }

// part is the bytes of part i, counted round the end.
func (f forms) part(i int) int { return f.span(i, 1) }

// span is the bytes of count parts from begin on, going round the end.
func (f forms) span(begin, count int) int {
	upTo := func(i int) int { // the bytes before part i, over as many rounds as it takes
		start, _ := Cut(f.elements, f.ranks, i%f.ranks)
		return (i/f.ranks*f.elements + start) * f.size
	}
	begin = (begin%f.ranks + f.ranks) % f.ranks
	return upTo(begin+count) - upTo(begin)
}

// of gives the formula. A mirror image sends what the original receives.
func (f forms) of(op Op, algorithm Algorithm) Traffic {
	switch op {
	case Reduce:
		return f.of(Broadcast, algorithm).mirror()
	case Gather:
		return f.of(Scatter, algorithm).mirror()
	case ReduceScatter:
		return f.reduceScatter(algorithm)
	case AllReduce:
		return f.allReduce(algorithm)
	case AllGather:
		return f.allGather(algorithm)
	case AllToAll:
		return f.allToAll(algorithm)
	case Scatter:
		return f.scatter(algorithm)
	}
	return f.broadcast(algorithm)
}

func (t Traffic) mirror() Traffic {
	t.Sent, t.Received = t.Received, t.Sent
	return t
}

func (t Traffic) then(u Traffic) Traffic {
	t.Rounds += u.Rounds
	for rank := range t.Sent {
		t.Sent[rank] = t.Sent[rank].plus(u.Sent[rank])
		t.Received[rank] = t.Received[rank].plus(u.Received[rank])
	}
	return t
}

// each fills in what every rank sends and receives.
func (f forms) each(rounds int, loads func(rank int) (sent, received Load)) Traffic {
	t := Traffic{Rounds: rounds, Sent: make([]Load, f.ranks), Received: make([]Load, f.ranks)}
	for r := range f.ranks {
		t.Sent[r], t.Received[r] = loads(r)
	}
	return t
}

// children is how many children rank v has in a binomial tree of so many ranks:
// v + 1, 2, 4, … as long as that is below v's lowest bit and there is such a rank.
func children(v, ranks int) int {
	if v == 0 {
		return ceilLog(ranks)
	}
	return min(bits.TrailingZeros(uint(v)), ceilLog(ranks-v))
}

// below is the number of ranks in v's subtree, v among them.
func below(v, ranks int) int {
	if v == 0 {
		return ranks
	}
	return min(v&-v, ranks-v)
}
