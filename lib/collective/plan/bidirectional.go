package plan

// bothWays is the all-gather by a ring that is used in both directions at once: a
// chunk goes half of the way round by the right, half by the left. That takes half
// the rounds of a ring with the same bytes a rank, so it gains where a rank has a
// port for each neighbour, as on a torus (Jouppi et al. 2023, "TPU v4", has such
// links; see [Topology.Ports]). Where the number of other ranks is odd, the right
// goes one further.
//
// In the mirror image, a reduce-scatter, the sums of both halves of the ring meet at
// the chunk's own rank.
func bothWays(ranks int) schedule {
	right, left := ranks/2, (ranks-1)/2
	var s schedule
	for k := range right {
		var round []move
		for r := range ranks {
			round = append(round, move{r, (r + 1) % ranks, []int{(r - k + ranks) % ranks}})
		}
		if k < left {
			for r := range ranks {
				round = append(round, move{r, (r - 1 + ranks) % ranks, []int{(r + k) % ranks}})
			}
		}
		s = append(s, round)
	}
	return s
}
