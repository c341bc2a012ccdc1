package step

import "slices"

// Names in [Plan.Traffic] of what goes along no axis.
const (
	BetweenStages = "pipe" // messages, activations and their gradients, from one rank to another
	ToHost        = "host" // to the host's memory and back
)

// Traffic counts, for each rank, the bytes that it sends in a step, by axis. Of what a group does along an axis that
// is the data of the operation, which of what goes in or comes out is more: the full parameters of a gather, the full
// gradients of a reduce. An algorithm such as the ring moves (n-1)/n of it for a gather or a reduce-scatter of n
// ranks, and twice that for an all-reduce. A message counts where it is sent. Groups of one rank or device send
// nothing. Errors are those of [Plan.Memory].
func (p *Plan) Traffic(s Sizes) ([]map[string]int64, error) {
	q, err := p.checked()
	if err == nil {
		err = s.check(len(p.Blocks), len(p.Units))
	}
	if err != nil {
		return nil, err
	}
	all := make([]map[string]int64, len(q.Ranks))
	for r, list := range q.Ranks {
		all[r] = map[string]int64{}
		for _, op := range list {
			if axis, bytes := q.moves(op, s); bytes > 0 {
				all[r][axis] += bytes
			}
		}
	}
	return all, nil
}

// moves returns what an operation sends, and along which axis.
func (p *Plan) moves(op Op, s Sizes) (axis string, bytes int64) {
	switch op.Kind {
	case Send:
		return BetweenStages, s.of(op.message())
	case Store, Fetch:
		return ToHost, s.of(p.operand(op))
	case Gather, Reduce:
	default:
		return "", 0
	}
	if a, _ := p.Axis(op.Axis); a.Size == 1 {
		return "", 0
	}
	switch {
	case op.Kind == Gather:
		return op.Axis, s.of(p.operand(op))
	case op.What == Gradient:
		v := Value{Held: Sum, Unit: op.Unit}
		reduce := p.Units[op.Unit].Reduce
		if before := reduce[:max(0, slices.Index(reduce, op.Axis))]; slices.Contains(before, p.Units[op.Unit].Shard) {
			v.Held = Reduced // of which only a shard is left
		}
		return op.Axis, s.of(v)
	}
	for u := range p.Units {
		if op.Unit < 0 || op.Unit == u {
			bytes += s.of(Value{Held: resident, Unit: u}) + s.of(Value{Held: States, Unit: u})
		}
	}
	return op.Axis, bytes
}
