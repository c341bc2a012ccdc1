package step

import "slices"

// Names in [Plan.Traffic] of transfers that belong to no axis.
const (
	betweenStages = "pipe" // messages between ranks: activations and their gradients
	ToHost        = "host" // copies to host memory and back
)

// Traffic predicts the bytes that each rank sends in a step, by axis. A collective counts as its full data: the full
// parameters of a gather, the full gradients of a reduction. A ring moves (n-1)/n of that for a gather or a
// reduce-scatter among n ranks, and twice as much for an all-reduce. A message counts at its sender. Axes of size 1
// send nothing. Errors are those of [Plan.Memory].
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

// moves returns the bytes that an operation sends, and along which axis.
func (c *checked) moves(r, i int, s Sizes) (axis string, bytes int64) {
	op, flow := c.Ranks[r][i], c.flows[r]
	if a, _ := c.Axis(op.Axis); a.Size == 1 {
		return "", 0
	}
	switch op.verb() {
	case verb{Reduce, Gradient}:
		unit, v := c.Units[op.Unit], Value{Held: Sum, Unit: op.Unit}
		if shard := slices.Index(unit.Reduce, unit.Shard); shard >= 0 && shard < slices.Index(unit.Reduce, op.Axis) {
			v.Held = Reduced // already reduced to a shard
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
