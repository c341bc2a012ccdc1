package step

import "slices"

// place is where an operation is: the rank, and its position in the rank's list.
type place struct{ rank, at int32 }

// nowhere is the place of an operation that there is not.
var nowhere = place{-1, -1}

// gives is the value that an operation makes for another block, or sends.
func (op Op) gives() (v Value, ok bool) {
	switch {
	case op.Kind == Forward, op.Kind == Send && op.What == Activation:
		return Value{Held: Input, Block: op.Block + 1, Micro: op.Micro}, true
	case op.Kind == Backward, op.Kind == InputGrad, op.Kind == Send:
		return Value{Held: OutGrad, Block: op.Block - 1, Micro: op.Micro}, true
	}
	return v, false
}

// takes is the value that an operation needs from another block, or receives.
func (op Op) takes() (v Value, ok bool) {
	switch {
	case op.Kind == Forward, op.Kind == Recv && op.What == Activation:
		return Value{Held: Input, Block: op.Block, Micro: op.Micro}, true
	case op.Kind == Backward, op.Kind == InputGrad, op.Kind == Recv:
		return Value{Held: OutGrad, Block: op.Block, Micro: op.Micro}, true
	}
	return v, false
}

// message is the value that an operation sends or receives.
func (op Op) message() Value {
	v, ok := op.gives()
	if !ok {
		v, _ = op.takes()
	}
	return v
}

// links have, of each operation that gives a value, the place of the one that takes it, and of that the place of the
// one that gives it; nowhere where there is none. Of replicas, which do the same for other rows of a batch, the first
// has the first rank that takes a value.
type links struct {
	to, from [][]place
	replicas int
}

// linked matches passes, or messages, by the names of values. A pass takes what its own rank gives. Of other ranks the
// first that gives a value belongs to the first that takes it, and so on: in replicas several do.
func (p *Plan) linked(passes bool) *links {
	ends := map[Value]*[2][]place{}
	enter := func(end, r, i int, v Value, ok bool) {
		if !ok {
			return
		}
		if ends[v] == nil {
			ends[v] = new([2][]place)
		}
		ends[v][end] = append(ends[v][end], place{int32(r), int32(i)})
	}
	l := &links{}
	for r, list := range p.Ranks {
		l.to = append(l.to, slices.Repeat([]place{nowhere}, len(list)))
		l.from = append(l.from, slices.Repeat([]place{nowhere}, len(list)))
		for i, op := range list {
			if op.Kind.Pass() == passes {
				v, ok := op.gives()
				enter(0, r, i, v, ok)
				v, ok = op.takes()
				enter(1, r, i, v, ok)
			}
		}
	}
	for _, e := range ends {
		gives, takes := e[0], e[1]
		l.replicas = max(l.replicas, len(takes))
		if passes {
			gives, takes = l.own(gives, takes)
		}
		for k := range min(len(gives), len(takes)) {
			l.link(gives[k], takes[k])
		}
	}
	return l
}

func (l *links) link(from, to place) { l.to[from.rank][from.at], l.from[to.rank][to.at] = to, from }

// own links what is given and taken by one rank, and returns the others. Both are in ascending order of ranks.
func (l *links) own(gives, takes []place) (restGives, restTakes []place) {
	for _, g := range gives {
		if k, ok := slices.BinarySearchFunc(takes, g.rank, func(t place, r int32) int { return int(t.rank - r) }); ok {
			l.link(g, takes[k])
		} else {
			restGives = append(restGives, g)
		}
	}
	return restGives, slices.DeleteFunc(takes, func(t place) bool { return l.from[t.rank][t.at] != nowhere })
}

// peer is the rank of the other end of a message, as the names say: 0 where there is none.
func (l *links) peer(rank, at int) int {
	return int(max(0, l.to[rank][at].rank, l.from[rank][at].rank))
}
