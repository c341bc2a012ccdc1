package schedule

import "fmt"

// maxActions is the most actions that a schedule is built or read with: about 25 MB.
const maxActions = 1 << 20

// blank returns a schedule with empty lists for the ranks, or an error for sizes that cannot be. A rank has chunks
// stages, each of which makes about passes actions for a micro-batch.
func blank(kind Kind, ranks, microbatches, chunks, passes int) (Schedule, error) {
	for _, size := range []struct {
		name  string
		value int
	}{{"ranks", ranks}, {"micro-batches", microbatches}, {"chunks a rank", chunks}} {
		if size.value < 1 {
			return Schedule{}, fmt.Errorf("schedule %s: %d %s: ask for at least 1", kind, size.value, size.name)
		}
		if size.value > maxActions {
			return Schedule{}, fmt.Errorf("schedule %s: %d %s: ask for at most %d", kind, size.value, size.name, maxActions)
		}
	}
	// Divisions, since the product may not fit an int.
	if maxActions/passes/ranks/microbatches/chunks == 0 {
		return Schedule{}, fmt.Errorf(
			"schedule %s: %d ranks, %d micro-batches and %d chunks a rank make more than %d actions: ask for fewer",
			kind, ranks, microbatches, chunks, maxActions)
	}
	return Schedule{
		Name: string(kind), Stages: ranks * chunks, Microbatches: microbatches, Every: microbatches,
		Weights: Flush, Ranks: make([][]Action, ranks),
	}, nil
}

// do appends an action to a rank's list.
func (s *Schedule) do(rank int, pass Pass, stage, microbatch int) {
	s.Ranks[rank] = append(s.Ranks[rank], Action{pass, stage, microbatch})
}

// flush ends each rank's list with an update of each of its stages.
func (s *Schedule) flush() {
	for r := range s.Ranks {
		for _, stage := range s.On(r) {
			s.do(r, Update, stage, s.Microbatches-1)
		}
	}
}
