package step

import "slices"

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
	links, err := p.passes()
	if err != nil {
		return nil, err
	}
	return p.versionsOf(links)
}

func (p *Plan) versionsOf(links *links) ([][]int, error) {
	versions := make([][]int, len(p.Ranks)) // at first the newest that the rank has of what an operation uses or makes
	for r, list := range p.Ranks {
		versions[r] = make([]int, len(list))
		newest, all := map[int]int{}, p.UnitsOn(r)
		for i, op := range list {
			for k, u := range p.touched(op, all) {
				if op.Kind == Update {
					newest[u]++
				}
				if k == 0 && op.Kind.Pass() {
					versions[r][i] = newest[u]
				}
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
			if op.Kind == Forward {
				newest := versions[r][i]
				if began[key] = p.version(place{int32(r), int32(i)}, links, versions); began[key] > newest {
					return nil, p.errorAt(r, i, "it needs version %d of the weights, and the rank has made only %d by then: "+
						"move it behind an update of block %d", began[key], newest, op.Block)
				}
			}
			versions[r][i] = began[key]
		}
	}
	return versions, nil
}

// version is the one that the forward pass at a place uses; versions has the newest at it, and at that of the
// first block.
func (p *Plan) version(at place, links *links, versions [][]int) int {
	switch p.Weights {
	case Double:
		return max(p.Ranks[at.rank][at.at].Micro/p.Every-1, 0)
	case Flush:
		return 0
	case Vertical:
		for links.from[at.rank][at.at] != nowhere {
			at = links.from[at.rank][at.at]
		}
	}
	return versions[at.rank][at.at]
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
		kept[r] = map[int]int{}
		later := map[int]map[int]bool{} // by unit, the versions that are there and passes further behind use
		all := p.UnitsOn(r)
		for i, op := range slices.Backward(list) {
			for _, u := range p.touched(op, all) {
				switch {
				case op.Kind == Update:
					delete(later[u], versions[r][i]) // before this there is none
					kept[r][u] = max(kept[r][u], len(later[u])+1)
				case op.Kind.Pass():
					if later[u] == nil {
						later[u] = map[int]bool{}
					}
					later[u][versions[r][i]] = true
					kept[r][u] = max(kept[r][u], 1)
				}
			}
		}
	}
	return kept, nil
}
