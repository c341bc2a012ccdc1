package step

import "slices"

// place is an operation's rank and its position in the rank's list.
type place struct{ rank, at int32 }

// nowhere stands for an operation that does not exist.
var nowhere = place{-1, -1}

// takes is the value that a Forward, Backward or InputGrad needs from another block, or that a message carries to its
// receiver; gives is the value that a pass makes for another block, or that is sent.
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

// message is the value that a Send or Recv carries.
func (op Op) message() Value {
	if op.Kind == Send {
		return op.gives()
	}
	return op.takes()
}

// links are the places of each operation's consumer (to) and producer (from), or nowhere.
type links struct{ to, from [][]place }

// linked matches passes, or messages, by the values that they exchange. A pass uses what its own rank makes, if it
// does. Among other ranks, the first producer belongs to the first consumer and so on: replicas have the same
// operations for other examples.
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

// peer is the rank of the other end of a message, or 0 if there is none.
func (l *links) peer(rank, at int) int {
	return int(max(0, l.to[rank][at].rank, l.from[rank][at].rank))
}
