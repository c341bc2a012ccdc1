package plan

// Fastest returns the plan of an operation that takes the least time on a network for
// so many elements of elementSize bytes, by the model of Cost, and that time. Of
// several it returns the first in the order of Algorithms. The options are those of
// New.
func Fastest(op Op, ranks int, t Topology, elements, elementSize int, options ...Option) (*Plan, *Timeline, error) {
	var best *Plan
	var least *Timeline
	for _, algorithm := range Algorithms(op) {
		p, err := New(op, algorithm, ranks, options...)
		if err != nil {
			return nil, nil, err
		}
		line, err := p.Cost(t, elements, elementSize)
		if err != nil {
			return nil, nil, err
		}
		if best == nil || line.Total < least.Total {
			best, least = p, line
		}
	}
	if best == nil { // an operation that does not exist: New has the words for it
		_, err := New(op, Naive, ranks, options...)
		return nil, nil, err
	}
	return best, least, nil
}
