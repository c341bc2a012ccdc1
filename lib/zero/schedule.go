package zero

// A pass goes through positions: the forward passes of all blocks but the last, then the backward passes of all, from the
// last to the first. The last block's passes follow each other, and are one program.

// blockAt is the block of a position among those of so many blocks.
func blockAt(position, blocks int) int {
	if position < blocks-1 {
		return position
	}
	return 2*blocks - 2 - position
}

// stay is a stretch of positions, first to last, in which a unit is gathered.
type stay struct{ unit, first, last int }

// stays lists, in order of their beginning, when units are gathered in a pass of stage 3. A unit that the next position needs
// too stays.
func (l *layout) stays() (all []stay) {
	blocks := len(l.uses)
	open := map[int]int{} // by unit: its last stay
	for position := range 2*blocks - 1 {
		for _, u := range l.uses[blockAt(position, blocks)] {
			if at, ok := open[u]; ok && all[at].last == position-1 {
				all[at].last = position
				continue
			}
			open[u] = len(all)
			all = append(all, stay{u, position, position})
		}
	}
	return all
}
