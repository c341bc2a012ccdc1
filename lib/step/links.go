package step

import "slices"

// place is where an operation is: the rank, and its position in the rank's list.
type place struct{ rank, at int32 }

// nowhere is the place of an operation that there is not.
var nowhere = place{-1, -1}

// takes is the value that a pass needs from another block, or that is received; gives is the one that a pass makes for
// another block, or that is sent. They are for Forward, Backward, InputGrad and messages alone.
func (op Op) takes() Value {
	if op.Kind == Forward || op.What == Activation {
		return Value{Held: Input, Block: op.Block, Micro: op.Micro}
	}
	return Value{Held: OutGrad, Block: op.Block, Micro: op.Micro}
}

func (op Op) gives() Value {
	v := op.takes()
	if v.Held == Input {
		v.Block++
	} else {
		v.Block--
	}
	return v
}

// message is the value that an operation sends or receives.
func (op Op) message() Value {
	if op.Kind == Send {
		return op.gives()
	}
	return op.takes()
}

// links have, of each operation that gives a value, the place of the one that takes it, and of that the place of the
// one that gives it; nowhere where there is none.
type links struct{ to, from [][]place }

// linked matches passes, or messages, by the names of values. A pass takes what its own rank gives. Of other ranks the
// first that gives a value belongs to the first that takes it, and so on: in replicas, which do the same for other rows
// of a batch, several do.
func (p *Plan) linked(passes bool) *links {
	gives, takes := map[Value][]place{}, map[Value][]place{}
	l := &links{}
	for r, list := range p.Ranks {
		none := slices.Repeat([]place{nowhere}, len(list))
		l.to, l.from = append(l.to, none), append(l.from, slices.Clone(none))
		for i, op := range list {
			at := place{int32(r), int32(i)}
			pass := passes && (op.Kind == Forward || op.Kind == Backward || op.Kind == InputGrad)
			if pass || !passes && op.Kind == Send {
				gives[op.gives()] = append(gives[op.gives()], at)
			}
			if pass || !passes && op.Kind == Recv {
				takes[op.takes()] = append(takes[op.takes()], at)
			}
		}
	}
	for v, from := range gives {
		to := takes[v]
		if passes { // both are in ascending order of ranks
			from = slices.DeleteFunc(from, func(g place) bool {
				k, ok := slices.BinarySearchFunc(to, g.rank, func(t place, r int32) int { return int(t.rank - r) })
				if ok {
					l.link(g, to[k])
				}
				return ok
			})
			to = slices.DeleteFunc(to, func(t place) bool { return l.from[t.rank][t.at] != nowhere })
		}
		for k := range min(len(from), len(to)) {
			l.link(from[k], to[k])
		}
	}
	return l
}

func (l *links) link(from, to place) { l.to[from.rank][from.at], l.from[to.rank][to.at] = to, from }

// peer is the rank of the other end of a message, as the names say: 0 where there is none.
func (l *links) peer(rank, at int) int {
	return int(max(0, l.to[rank][at].rank, l.from[rank][at].rank))
}
