package step

// Versions returns, for each operation of each rank's list, the version of its block's weights that a pass uses; for an
// update, the one that it makes; for others 0. The first version is 0, the first update makes 1. See [Weights] for the
// rules.
//
// In PipeDream, micro-batch t uses version t-(n-1-k) at stage k of n, counted from 0, and version t-(n-1) with vertical
// sync; before the pipeline is full, version 0 (Narayanan et al. 2019, §3.3, where stages count from 1).
//
// Errors are those of passes that are missing, twice or in the wrong order, and a version that the rank has not made
// when a forward pass needs it.
func (p *Plan) Versions() ([][]int, error) {
	x, err := p.index()
	if err != nil {
		return nil, err
	}
	return p.versionsOf(x)
}

func (p *Plan) versionsOf(x *index) ([][]int, error) {
	versions := p.made()
	first := map[place]int{} // of the first block's forward passes, the newest version where they begin
	if p.Weights == Vertical {
		for m := range p.Micro {
			for _, at := range x.of(output, m) {
				first[place{at.rank, int32(m)}] = versions[at.rank][at.at]
			}
		}
	}
	for r, list := range p.Ranks {
		began := map[[2]int]int{} // versions by block and micro-batch
		for i, op := range list {
			if !op.Kind.Pass() || op.Kind == Update {
				continue
			}
			key := [2]int{op.Block, op.Micro}
			if op.Kind != Forward {
				versions[r][i] = began[key]
				continue
			}
			use, newest := 0, versions[r][i]
			switch p.Weights {
			case Stash:
				use = newest
			case Vertical:
				use = first[place{x.firstRank(op, r), int32(op.Micro)}]
			case Double:
				use = max(op.Micro/p.Every-1, 0)
			}
			if use > newest {
				return nil, p.errorAt(r, i, "it needs version %d of the weights, and the rank has made only %d by then: "+
					"move it behind an update of block %d", use, newest, op.Block)
			}
			versions[r][i], began[key] = use, use
		}
	}
	return versions, nil
}

// firstRank is the rank that has the first block's forward pass for a micro-batch in a rank's replica.
func (x *index) firstRank(op Op, rank int) int32 {
	for op.Kind = Forward; op.Block > 0; op.Block-- {
		from, _ := x.input(op, rank)
		rank = int(from.rank)
	}
	return int32(rank)
}

// made returns, for each operation of each rank's list, the newest version that the rank then has of the block's
// weights; for an update, the one that it makes.
func (p *Plan) made() [][]int {
	made := make([][]int, len(p.Ranks))
	for r, list := range p.Ranks {
		made[r] = make([]int, len(list))
		newest, all := map[int]int{}, p.UnitsOn(r)
		for i, op := range list {
			units := op.units(all)
			switch {
			case op.Kind == Update:
				for _, u := range units {
					newest[u]++
				}
			case op.Kind.Pass():
				units = p.Blocks[op.Block].Units
			default:
				continue
			}
			if len(units) > 0 {
				made[r][i] = newest[units[0]]
			}
		}
	}
	return made
}

// KeptVersions returns, for each rank, the most versions of its weights that it has at a time, by unit. A version is
// kept from the update that makes it until the next one is made and no pass that uses it is left. Errors are those of
// [Plan.Versions].
func (p *Plan) KeptVersions() ([]map[int]int, error) {
	versions, err := p.Versions()
	if err != nil {
		return nil, err
	}
	kept := make([]map[int]int, len(p.Ranks))
	for r, list := range p.Ranks {
		all := p.UnitsOn(r)
		kept[r] = map[int]int{}
		last := map[[2]int]int{} // of each unit and version, the last position that uses it
		p.eachUse(list, func(i, u int) {
			kept[r][u] = 1 // at the least
			last[[2]int{u, versions[r][i]}] = i
		})
		old := map[int]int{}    // of each unit, how many versions before the newest are kept
		ends := map[int][]int{} // by position, the units of which one is kept until there
		for i, op := range list {
			for _, u := range ends[i] {
				old[u]--
			}
			if op.Kind != Update {
				continue
			}
			for _, u := range op.units(all) {
				if at := last[[2]int{u, versions[r][i] - 1}]; at > i {
					old[u]++
					ends[at] = append(ends[at], u)
				}
				kept[r][u] = max(kept[r][u], old[u]+1)
			}
		}
	}
	return kept, nil
}

// eachUse calls do for each pass of a list and each unit whose weights it uses.
func (p *Plan) eachUse(list []Op, do func(i, unit int)) {
	for i, op := range list {
		if op.Kind.Pass() && op.Kind != Update {
			for _, u := range p.Blocks[op.Block].Units {
				do(i, u)
			}
		}
	}
}
