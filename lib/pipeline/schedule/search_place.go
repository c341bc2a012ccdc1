package schedule

// placement is the rank of each stage, and the stages of each rank in ascending order.
type placement struct {
	rank   []int
	stages [][]int
}

// placements are the ways in which a search deals stages to ranks.
func placements(ranks, chunks int) []placement {
	loop, vee := placement{}, placement{}
	loop.stages, vee.stages = make([][]int, ranks), make([][]int, ranks)
	for s := range ranks * chunks {
		loop.put(s, s%ranks)
		vee.put(s, min(s, 2*ranks-1-s))
	}
	if chunks == 2 && ranks > 1 {
		return []placement{loop, vee}
	}
	return []placement{loop}
}

func (p *placement) put(stage, rank int) {
	if rank < 0 {
		return // a V has two chunks
	}
	p.rank = append(p.rank, rank)
	p.stages[rank] = append(p.stages[rank], stage)
}

// shares is what each rank stashes of one micro-batch.
func (p placement) shares(c Costs) (shares []float64) {
	for _, stages := range p.stages {
		sum := 0.0
		for _, s := range stages {
			sum += of(c.Activation, s, 1)
		}
		shares = append(shares, sum)
	}
	return shares
}
