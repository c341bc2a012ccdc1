package memest

import (
	"fmt"
	"slices"

	"github.com/shardbook/shardbook/lib/cost"
	"github.com/shardbook/shardbook/lib/recompute"
)

// need is memory that a moment of the backward pass needs besides saved activations.
type need struct {
	kind    Kind
	name    string
	count   int64
	formula string
}

// moment is a point of a step at which memory may peak.
type moment struct {
	name  string
	saved []int64 // the number of each of the stage's saved activations
	below []int64 // the part of saved that belongs to blocks below the current one, and may be in host memory
	needs []need
	bytes int64
}

// place is an operation of a block, counted through the stage.
type place struct {
	block int
	op    recompute.Op
}

func (p place) before() (_ place, ok bool) {
	if p.op > 0 {
		return place{p.block, p.op - 1}, true
	}
	return place{p.block - 1, recompute.Down}, p.block > 0
}

// stage is a pipeline stage on one device.
type stage struct {
	Setup
	sheet       *sheet
	plan        recompute.Plan // of its blocks
	dense       int            // the first blocks, which have an MLP; the others have experts
	first, last bool           // it has the embedding, the head
	saved       []activation   // of a block, of one with an MLP and of one with experts
	tensors     []tensor
}

// kind returns what a block has after its attention: cost.MLP or, for experts, cost.Routed.
func (s *stage) kind(block int) cost.Part {
	if block < s.dense {
		return cost.MLP
	}
	return cost.Routed
}

// saves reports whether a block saves an activation: it computes that, and does not recompute it.
func (s *stage) saves(block int, k activation) bool {
	return (k.only == "" || k.only == s.kind(block)) && s.plan[block]&k.parts == 0
}

// worst returns the moment at which memory peaks: at the loss; in one of the blocks at the gradient of the MLP, of the
// attention weights, or of queries, keys and values; or at the end of the backward pass.
func (s *stage) worst() (moment, error) {
	var worst moment
	consider := func(m moment) error {
		if err := s.weigh(&m); err != nil {
			return err
		}
		if m.bytes > worst.bytes || worst.name == "" {
			worst = m
		}
		return nil
	}
	below := make([]int64, len(s.saved)) // saved activations of the blocks below the current one
	for block := range s.plan {
		s.addSaved(below, block, recompute.Down)
	}
	if s.last {
		if err := consider(moment{name: "the loss", saved: slices.Clone(below), below: slices.Clone(below),
			needs: slices.Concat(s.loss(), s.gradients(-1, -1))}); err != nil {
			return worst, err
		}
	}
	output, dropped := map[cost.Part]int{}, -1 // the inputs of the down projection, and of the matmul with the values
	for i, k := range s.saved {
		switch {
		case k.op == recompute.Act:
			output[k.only] = i
		case k.name == weights:
			dropped = i
		}
	}
	for block := len(s.plan) - 1; block >= 0; block-- {
		for i, k := range s.saved {
			if s.saves(block, k) {
				below[i]--
			}
		}
		done := len(s.plan) - 1 - block
		for _, at := range []struct {
			name  string
			op    recompute.Op
			needs []need
		}{
			{"the MLP's gradient", recompute.Act, s.mlp(block)},
			{"the attention weights' gradient", recompute.Scores, s.scores(s.plan[block].Has(recompute.Scores))},
			{"the gradient of queries, keys and values", recompute.Norm1, s.projections()},
		} {
			saved := slices.Clone(below)
			s.addSaved(saved, block, at.op)
			s.addRecomputed(saved, place{block, at.op})
			if at.op == recompute.Act && !s.plan[block].Has(at.op) {
				saved[output[s.kind(block)]]-- // last used by the down projection's gradient, which comes before
			}
			if at.op == recompute.Scores && dropped >= 0 && !s.plan[block].Has(at.op) {
				saved[dropped]-- // last used by the gradient of the values, which comes before
			}
			ready := done // blocks whose parameter gradients are complete, or are at the next moment
			if at.op != recompute.Act {
				ready++
			}
			needs := slices.Concat(at.needs, s.gradients(done, ready))
			if err := consider(moment{name: fmt.Sprintf("%s in block %d", at.name, block), saved: saved,
				below: slices.Clone(below), needs: needs}); err != nil {
				return worst, err
			}
		}
	}
	none := make([]int64, len(s.saved))
	end := moment{name: "the update", saved: none, below: none, needs: s.end()}
	return worst, consider(end)
}

// addSaved adds a block's saved activations up to an operation. Those of later operations are freed before its
// gradient.
func (s *stage) addSaved(counts []int64, block int, last recompute.Op) {
	for i, k := range s.saved {
		if k.op <= last && s.saves(block, k) {
			counts[i]++
		}
	}
}

// addRecomputed adds the activations that are recomputed for the gradient of an operation: those of the consecutive
// recomputed operations that end with it, or with the one before it.
func (s *stage) addRecomputed(counts []int64, at place) {
	ok := true
	if !s.plan[at.block].Has(at.op) {
		at, ok = at.before()
	}
	for ; ok && s.plan[at.block].Has(at.op); at, ok = at.before() {
		for i, k := range s.saved {
			here := k.only == "" || k.only == s.kind(at.block)
			if here && (k.op == at.op || k.parts.Has(at.op) && !s.plan[at.block].Has(k.op)) {
				counts[i]++
			}
		}
	}
}

// weigh sums a moment's memory on the device.
func (s *stage) weigh(m *moment) error {
	add := func(name string, count, bytes int64) error {
		n, err := times(count, bytes)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		m.bytes += n
		return nil
	}
	for i, n := range m.saved {
		if s.OffloadActivations {
			n -= m.below[i]
		}
		if err := add(s.saved[i].name, n, s.saved[i].bytes); err != nil {
			return err
		}
	}
	for _, n := range m.needs {
		one, err := s.sheet.compute(n.formula)
		if err != nil {
			return fmt.Errorf("%s: %w", n.name, err)
		}
		if err := add(n.name, n.count, one.bytes); err != nil {
			return err
		}
	}
	return nil
}
