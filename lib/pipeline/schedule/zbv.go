package schedule

// ZBV is the zero-bubble schedule with the memory of 1F1B (Qi et al. 2023, "Zero Bubble Pipeline Parallelism", §6). The
// model has two stages a rank, placed in a V: down the ranks and up again, rank r having stages r and 2·ranks-1-r. So
// the first gradient starts where the last forward pass ended, on rank 0, and all ranks stash the same: at most 2·ranks
// of the half-size stages.
//
// Rank r's list, as in the paper's figure:
//   - 2(ranks-r)-1 micro-batches go down, then r times one goes up and one down: rank r has started 2·ranks-r-1 by then;
//   - ranks-r times one goes up and back at once, with its weight gradient;
//   - then in turn: one down, back out of the lower chunk with its weight gradient, one up, back with its weight gradient;
//   - when none is left to go down, the input gradients come first, which others wait for, and weight gradients fill in.
func ZBV(ranks, microbatches int) (Schedule, error) {
	s, err := blank(KindZBV, ranks, microbatches, 2, 3)
	if err != nil {
		return s, err
	}
	for r := range ranks {
		v := vee{s: &s, rank: r, stage: [2]int{r, 2*ranks - 1 - r}, next: [2]map[Pass]int{{}, {}},
			// The order is that of enough micro-batches to fill the pipeline; those that are not there are left out.
			total: max(microbatches, 2*ranks-1)}
		for range 2*(ranks-r) - 1 {
			v.do(down, Forward)
		}
		for range r {
			v.do(up, Forward)
			v.do(down, Forward)
		}
		for range ranks - r {
			v.do(up, Forward, InputGrad, WeightGrad)
		}
		for v.next[up][Forward] < v.total {
			v.do(down, Forward, InputGrad, WeightGrad)
			v.do(up, Forward, InputGrad, WeightGrad)
		}
		for range r {
			v.do(down, InputGrad)
			v.do(up, InputGrad)
		}
		for range ranks - r {
			v.do(down, InputGrad, WeightGrad)
		}
		for range r {
			v.do(up, WeightGrad)
		}
		for range r {
			v.do(down, WeightGrad)
		}
	}
	s.flush()
	return s, nil
}

// The two chunks of a rank in a V.
const (
	down = iota
	up
)

// vee writes a rank's list of a schedule with two chunks a rank; of each chunk, each pass takes the next micro-batch.
type vee struct {
	s           *Schedule
	rank, total int
	stage       [2]int
	next        [2]map[Pass]int
}

func (v *vee) do(chunk int, passes ...Pass) {
	for _, pass := range passes {
		m := v.next[chunk][pass]
		if m == v.total {
			continue
		}
		v.next[chunk][pass]++
		if m < v.s.Microbatches {
			v.s.do(v.rank, pass, v.stage[chunk], m)
		}
	}
}
