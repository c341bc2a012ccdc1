package plan

import (
	"fmt"
	"slices"
)

// Algorithm is a way to carry out an operation. [Algorithms] lists those of each operation.
type Algorithm uint8

const (
	Naive             Algorithm = iota // one message after the other: through the root, or pair by pair
	Ring                               // from neighbour to neighbour
	OneShot                            // everyone sends to everyone at once, also called "parallel"
	Tree                               // a binomial tree
	RecursiveDoubling                  // with partners 1, 2, 4, … away; for AllToAll that of Bruck et al.
	HalvingDoubling                    // recursive halving reduces, recursive doubling spreads
	BidirectionalRing                  // a ring that is used both ways at once
	Hierarchical                       // between groups of ranks, and inside each group
)

var (
	opNames = []string{"broadcast", "reduce", "all-reduce", "gather", "all-gather",
		"scatter", "reduce-scatter", "all-to-all"}
	algorithmNames = []string{"naive", "ring", "one-shot", "tree", "recursive-doubling",
		"halving-doubling", "bidirectional-ring", "hierarchical"}
	actionNames = []string{"send", "receive", "add", "copy"}
)

// String is the operation's name, such as "all-reduce".
func (o Op) String() string { return name(opNames, int(o), "Op") }

// String is the algorithm's name, such as "halving-doubling".
func (a Algorithm) String() string { return name(algorithmNames, int(a), "Algorithm") }

// String is the action's name, such as "send".
func (a Action) String() string { return name(actionNames, int(a), "Action") }

func name(names []string, i int, kind string) string {
	if i < len(names) {
		return names[i]
	}
	return fmt.Sprintf("%s(%d)", kind, i)
}

// Ops returns all operations.
func Ops() []Op {
	return []Op{Broadcast, Reduce, AllReduce, Gather, AllGather, Scatter, ReduceScatter, AllToAll}
}

// Algorithms returns the algorithms that [New] has for an operation, in the order of
// their constants; none for an unknown operation.
func Algorithms(op Op) []Algorithm {
	var list []Algorithm
	for a := range recipes[op] {
		list = append(list, a)
	}
	slices.Sort(list)
	return list
}

// rooted reports whether the operation has a root.
func (o Op) rooted() bool { return o == Broadcast || o == Reduce || o == Gather || o == Scatter }

// parts reports whether the data has a part for each rank.
func (o Op) parts() bool { return o != Broadcast && o != Reduce && o != AllReduce }

// reduces reports whether the operation has a reduction.
func (o Op) reduces() bool { return o == Reduce || o == AllReduce || o == ReduceScatter }
