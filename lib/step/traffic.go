package step

import "slices"

// Names in [Plan.Traffic] of what goes along no axis.
const (
	betweenStages = "pipe" // messages, activations and their gradients, from one rank to another
	ToHost        = "host" // to the host's memory and back
)

// Traffic counts, for each rank, the bytes that it sends in a step, by axis. Of what a group does along an axis that
// is the data of the operation, which of what goes in or comes out is more: the full parameters of a gather, the full
// gradients of a reduce. An algorithm such as the ring moves (n-1)/n of it for a gather or a reduce-scatter of n
// ranks, and twice that for an all-reduce. A message counts where it is sent. Groups of one rank or device send
// nothing. Errors are those of [Plan.Memory].
func (p *Plan) Traffic(s Sizes) ([]map[string]int64, error) {
	c, err := p.sized(s)
	if err != nil {
		return nil, err
	}
	all := make([]map[string]int64, len(c.Ranks))
	for r, list := range c.Ranks {
		all[r] = map[string]int64{}
		for i := range list {
			if axis, bytes := c.moves(r, i, s); bytes > 0 {
				all[r][axis] += bytes
			}
		}
	}
	return all, nil
}

// moves returns what an operation sends, and along which axis.
func (c *checked) moves(r, i int, s Sizes) (axis string, bytes int64) {
	op, flow := c.Ranks[r][i], c.flows[r]
	if a, _ := c.Axis(op.Axis); a.Size == 1 {
		return "", 0
	}
	switch op.verb() {
	case verb{Reduce, Gradient}:
		unit, v := c.Units[op.Unit], Value{Held: Sum, Unit: op.Unit}
		if shard := slices.Index(unit.Reduce, unit.Shard); shard >= 0 && shard < slices.Index(unit.Reduce, op.Axis) {
			v.Held = Reduced // of which only a shard is left
		}
		return op.Axis, s.of(v)
	case verb{Reduce, State}:
		for _, u := range c.unitsOf(op, flow.units) {
			bytes += s.of(Value{Held: resident, Unit: u}) + s.of(Value{Held: States, Unit: u})
		}
		return op.Axis, bytes
	}
	switch op.Kind {
	case Gather:
		return op.Axis, s.of(flow.Makes[i][0])
	case Send:
		return betweenStages, s.of(flow.Uses[i][0])
	case Store, Fetch:
		return ToHost, s.of(flow.Uses[i][0])
	}
	return "", 0
}
