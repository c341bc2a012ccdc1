package step

import "slices"

// Versions returns the version of the block's weights that each pass uses, and the version that each update makes, by
// rank and position in its list; 0 for other operations. The first update makes version 1. See [Weights] for the rules.
//
// In PipeDream, micro-batch t uses version t-(n-1-k) at stage k of n, counted from 0, and version t-(n-1) with vertical
// sync; before the pipeline is full, version 0 (Narayanan et al. 2019, §3.3, where stages count from 1).
//
// Errors are passes that are missing, repeated or in the wrong order, and a version that the rank does not have yet
// when a forward pass needs it.
func (p *Plan) Versions() ([][]int, error) {
	if _, err := p.passes(); err != nil {
		return nil, err
	}
	return p.versionsOf()
}

func (p *Plan) versionsOf() ([][]int, error) {
	newest := make([][]int, len(p.Ranks)) // of the operation's first unit
	for r, list := range p.Ranks {
		updates, all := map[int]int{}, p.UnitsOn(r)
		for _, op := range list {
			units, version := p.unitsOf(op, all), 0
			for _, u := range units {
				if op.Kind == Update {
					updates[u]++
				}
			}
			if op.Kind.Pass() && len(units) > 0 {
				version = updates[units[0]]
			}
			newest[r] = append(newest[r], version)
		}
	}
	before := &links{}
	if p.Weights == Vertical {
		before = p.linked(true)
	}
	versions := make([][]int, len(p.Ranks))
	for r, list := range p.Ranks {
		began := map[[2]int]int{} // versions by block and micro-batch
		for i, op := range list {
			version, key := newest[r][i], [2]int{op.Block, op.Micro}
			if op.Kind == Forward {
				switch p.Weights {
				case Flush:
					version = 0
				case Double:
					version = max(op.Micro/p.Every-1, 0)
				case Vertical: // that of the first block
					at := place{int32(r), int32(i)}
					for before.from[at.rank][at.at] != nowhere {
						at = before.from[at.rank][at.at]
					}
					version = newest[at.rank][at.at]
				}
				if began[key] = version; version > newest[r][i] {
					return nil, p.errorAt(r, i, "it needs version %d of the weights, and the rank has only version %d "+
						"by then: move it after an update of block %d", version, newest[r][i], op.Block)
				}
			} else if op.Kind.Pass() && op.Kind != Update {
				version = began[key]
			}
			versions[r] = append(versions[r], version)
		}
	}
	return versions, nil
}

// WeightVersions returns, for each rank and unit, the maximal number of versions of the weights that it stores at a
// time. A version is stored from the update that makes it until the next update, and as long as later passes use it.
// Errors are those of [Plan.Versions].
func (p *Plan) WeightVersions() ([]map[int]int, error) {
	versions, err := p.Versions()
	if err != nil {
		return nil, err
	}
	kept := make([]map[int]int, len(p.Ranks))
	for r, list := range p.Ranks {
		kept[r] = map[int]int{}
		later, all := map[int]map[int]bool{}, p.UnitsOn(r) // by unit, the versions that later passes use
		for i, op := range slices.Backward(list) {
			if !op.Kind.Pass() {
				continue
			}
			for _, u := range p.unitsOf(op, all) {
				if later[u] == nil {
					later[u] = map[int]bool{}
				}
				if later[u][versions[r][i]] = true; op.Kind == Update { // beside the version that it makes
					kept[r][u] = max(kept[r][u], len(later[u]))
					delete(later[u], versions[r][i]) // it does not exist before the update
				}
				kept[r][u] = max(kept[r][u], 1)
			}
		}
	}
	return kept, nil
}
