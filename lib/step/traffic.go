package step

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
	if err := p.Check(); err != nil {
		return nil, err
	}
	if err := s.check(len(p.Blocks), len(p.Units)); err != nil {
		return nil, err
	}
	q := p
	if !p.hasMessages() {
		q, _ = p.WithMessages() // Check has made it as well
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
		if op.What == Activation {
			return BetweenStages, size(s.Input, op.Block+1)
		}
		return BetweenStages, size(s.Input, op.Block)
	case Store, Fetch:
		held := map[What]Held{Activation: Input, Gradient: Reduced, Parameters: Whole, State: States}[op.What]
		if op.What == Gradient && len(p.Units[op.Unit].Reduce) == 0 {
			held = Sum
		}
		return ToHost, s.of(Value{Held: held, Block: op.Block, Unit: op.Unit})
	case Gather, Reduce:
	default:
		return "", 0
	}
	if a, _ := p.Axis(op.Axis); a.Size == 1 {
		return "", 0
	}
	switch op.What {
	case Activation:
		return op.Axis, size(s.Input, op.Block)
	case Parameters:
		return op.Axis, size(s.Whole, op.Unit)
	case Gradient:
		for _, axis := range p.Units[op.Unit].Reduce {
			if axis == op.Axis {
				break
			}
			if axis == p.Units[op.Unit].Shard { // of which only a shard is left
				return op.Axis, size(s.Reduced, op.Unit)
			}
		}
		return op.Axis, size(s.Sum, op.Unit)
	}
	if op.Unit >= 0 {
		return op.Axis, size(s.Resident, op.Unit) + size(s.States, op.Unit)
	}
	for u := range p.Units {
		bytes += size(s.Resident, u) + size(s.States, u)
	}
	return op.Axis, bytes
}
