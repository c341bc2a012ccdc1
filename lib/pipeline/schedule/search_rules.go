package schedule

import "math"

// rule is a list scheduler: whenever a rank is free it does what can start first, and of several such the one that the
// rule prefers. Forward passes keep to a limit of memory, and never take room without which a micro-batch that has begun
// could not end.
type rule struct {
	placement
	costs Costs
	room  []float64 // by rank: the most that it may hold
	// split has backward passes in two parts, so that the weights' part can wait.
	split bool
	// patience is the share of a weight gradient's time for which a rank waits for other work rather than begin one.
	patience float64
	// forwardFirst prefers a forward pass to a backward pass that could start as well.
	forwardFirst bool
	// deepFirst prefers a rank's last stage to its first, among forward passes; else micro-batches come in order.
	deepFirst bool
}

// rules are the ones that a search tries.
func rules(p placement, c Costs, limit float64) (all []rule) {
	shares := p.shares(c)
	ranks := len(shares)
	// Warm-ups as deep as 1F1B's, ZB-H2's and between, or as the memory allows.
	var rooms [][]float64
	for _, slope := range []float64{1, 1.5, 2, 3} {
		for _, more := range []float64{0, 1} {
			room := make([]float64, ranks)
			for r := range room {
				depth := math.Floor(slope*float64(ranks-1-r)) + 1 + more
				if len(p.stages[r]) > 1 { // a rank's stages are apart: its first waits for the whole way through all of them
					depth = math.Floor(slope*float64(ranks)) + more
				}
				room[r] = min(limit, max(1, depth)*shares[r])
			}
			rooms = append(rooms, room)
		}
	}
	free := make([]float64, ranks)
	for r := range free {
		free[r] = limit
	}
	rooms = append(rooms, free)
	for _, room := range rooms {
		for _, split := range []bool{true, false} {
			for _, patience := range []float64{0, 0.5, 1} {
				if !split && patience > 0 {
					continue
				}
				for bits := range 4 {
					if bits&2 != 0 && len(p.stages[0]) == 1 {
						continue
					}
					all = append(all, rule{p, c, room, split, patience, bits&1 != 0, bits&2 != 0})
				}
			}
		}
	}
	return all
}
