package schedule

// Versions returns, for each action of each rank's list, the version of its stage's weights that it uses; for an update,
// the one that it makes. The first version is 0, the first update makes 1. See [Weights] for the rules.
//
// In PipeDream, micro-batch t uses version t-(n-1-k) at stage k of n, counted from 0, and version t-(n-1) with vertical
// sync; before the pipeline is full, version 0 (Narayanan et al. 2019, §3.3, where stages count from 1).
//
// Errors are those of passes that are missing, twice or in the wrong order, and a version that the rank has not made when
// a forward pass needs it.
func (s Schedule) Versions() ([][]int, error) {
	x, err := s.index()
	if err != nil {
		return nil, err
	}
	return s.versions(x)
}

func (s Schedule) versions(x *index) ([][]int, error) {
	versions := s.made()
	var first []int // of each micro-batch, the newest version where the first stage begins it
	if s.Weights == Vertical {
		first = make([]int, s.Microbatches)
		for m := range first {
			p := x.forward[x.key(Action{Forward, 0, m})]
			first[m] = versions[p.rank][p.at]
		}
	}
	for r, list := range s.Ranks {
		for i, a := range list {
			use, newest := 0, versions[r][i]
			switch {
			case a.Pass == Update:
				continue
			case a.Pass != Forward: // the forward pass is earlier in the same list
				versions[r][i] = versions[r][x.forward[x.key(a)].at]
				continue
			case s.Weights == Stash:
				use = newest
			case s.Weights == Vertical:
				use = first[a.Microbatch]
			case s.Weights == Double:
				use = max(a.Microbatch/s.Every-1, 0)
			}
			if use > newest {
				return nil, s.errorAt(r, i, "it needs version %d of the weights, and the rank has made only %d by then: "+
					"move it behind an update of stage %d", use, newest, a.Stage)
			}
			versions[r][i] = use
		}
	}
	return versions, nil
}

// made returns, for each action of each rank's list, the newest version that the rank then has of the action's stage; for
// an update, the one that it makes.
func (s Schedule) made() [][]int {
	made := make([][]int, len(s.Ranks))
	for r, list := range s.Ranks {
		made[r] = make([]int, len(list))
		newest := map[int]int{}
		for i, a := range list {
			if a.Pass == Update {
				newest[a.Stage]++
			}
			made[r][i] = newest[a.Stage]
		}
	}
	return made
}

// KeptVersions returns, for each rank, the most versions of its weights that it has at a time, by stage. A version is kept
// from the update that makes it until the next one is made and no pass that uses it is left. Errors are those of
// [Schedule.Versions].
func (s Schedule) KeptVersions() ([]map[int]int, error) {
	versions, err := s.Versions()
	if err != nil {
		return nil, err
	}
	kept := make([]map[int]int, len(s.Ranks))
	for r, list := range s.Ranks {
		kept[r] = map[int]int{}
		last := map[[2]int]int{} // of each stage and version, the last position that uses it
		for i, a := range list {
			kept[r][a.Stage] = 1 // at the least
			if a.Pass != Update {
				last[[2]int{a.Stage, versions[r][i]}] = i
			}
		}
		old := map[int]map[int]bool{} // of each stage, the versions before the newest that are kept
		for i, a := range list {
			if old[a.Stage] == nil {
				old[a.Stage] = map[int]bool{}
			}
			version := versions[r][i]
			if a.Pass != Update {
				if last[[2]int{a.Stage, version}] == i {
					delete(old[a.Stage], version)
				}
				continue
			}
			before := version - 1
			if at, used := last[[2]int{a.Stage, before}]; used && at > i {
				old[a.Stage][before] = true
			}
			kept[r][a.Stage] = max(kept[r][a.Stage], len(old[a.Stage])+1)
		}
	}
	return kept, nil
}
