package memest

import (
	"fmt"
	"slices"

	"github.com/shardbook/shardbook/lib/recompute"
)

// need is memory that a moment of the backward pass needs besides what is kept.
type need struct {
	kind    Kind
	name    string
	count   int64
	formula string
}

// moment is a point of a step at which memory may be at its most.
type moment struct {
	name  string
	keeps []int64 // how many there are of each of the stage's keeps
	away  []int64 // how many of these are of blocks below the one in hand, and may be in host memory
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

// stage is a part of the model with all that its moments are made of.
type stage struct {
	Setup
	sheet       *sheet
	plan        recompute.Plan // of its blocks
	first, last bool           // it has the embedding, the head
	keeps       []kept         // of a block
	tensors     []tensor
}

// worst returns the moment at which memory is at its most: the loss, or in one of the blocks the gradients of the MLP,
// of the attention's weights, or of queries, keys and values, or the end of the backward pass.
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
	below := make([]int64, len(s.keeps)) // kept of the blocks below the one in hand
	for block := range s.plan {
		s.addKept(below, block, recompute.Down)
	}
	if s.last {
		if err := consider(moment{name: "the loss", keeps: slices.Clone(below), away: slices.Clone(below),
			needs: slices.Concat(s.loss(), s.gradients(-1, -1))}); err != nil {
			return worst, err
		}
	}
	output, dropped := -1, -1 // what the down projection multiplies, and the values
	for i, k := range s.keeps {
		switch {
		case k.op == recompute.Act:
			output = i
		case k.name == multiplied:
			dropped = i
		}
	}
	for block := len(s.plan) - 1; block >= 0; block-- {
		for i, k := range s.keeps {
			if s.plan[block]&k.made == 0 {
				below[i]--
			}
		}
		done := len(s.plan) - 1 - block
		for _, at := range []struct {
			name  string
			op    recompute.Op
			needs []need
		}{
			{"the MLP's gradient", recompute.Act, s.mlp(s.plan[block])},
			{"the attention weights' gradient", recompute.Scores, s.scores(s.plan[block].Has(recompute.Scores))},
			{"the gradient of queries, keys and values", recompute.Norm1, s.projections()},
		} {
			keeps := slices.Clone(below)
			s.addKept(keeps, block, at.op)
			s.addRecomputed(keeps, place{block, at.op})
			if at.op == recompute.Act && !s.plan[block].Has(at.op) {
				keeps[output]-- // the down projection's gradient comes first, and needed it last
			}
			if at.op == recompute.Scores && dropped >= 0 && !s.plan[block].Has(at.op) {
				keeps[dropped]-- // the gradient of the values comes first, and needed them last
			}
			ready := done // blocks whose gradients are there, to the next
			if at.op != recompute.Act {
				ready++
			}
			needs := slices.Concat(at.needs, s.gradients(done, ready))
			if err := consider(moment{name: fmt.Sprintf("%s in block %d", at.name, block), keeps: keeps,
				away: slices.Clone(below), needs: needs}); err != nil {
				return worst, err
			}
		}
	}
	none := make([]int64, len(s.keeps))
	end := moment{name: "the update", keeps: none, away: none, needs: s.end()}
	return worst, consider(end)
}

// addKept adds what is kept of a block up to an operation. What comes after is freed by the time of its gradient.
func (s *stage) addKept(keeps []int64, block int, last recompute.Op) {
	for i, k := range s.keeps {
		if k.op <= last && s.plan[block]&k.made == 0 {
			keeps[i]++
		}
	}
}

// addRecomputed adds what has been made again by the time that the gradient of a place is made: the run of operations
// that ends there, or right before it.
func (s *stage) addRecomputed(keeps []int64, at place) {
	ok := true
	if !s.plan[at.block].Has(at.op) {
		at, ok = at.before()
	}
	for ; ok && s.plan[at.block].Has(at.op); at, ok = at.before() {
		for i, k := range s.keeps {
			if k.op == at.op || k.made.Has(at.op) && !s.plan[at.block].Has(k.op) {
				keeps[i]++
			}
		}
	}
}

// weigh adds up what a moment has on the device.
func (s *stage) weigh(m *moment) error {
	add := func(name string, count, bytes int64) error {
		n, err := times(count, bytes)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		m.bytes += n
		return nil
	}
	for i, n := range m.keeps {
		if s.OffloadActivations {
			n -= m.away[i]
		}
		if err := add(s.keeps[i].name, n, s.keeps[i].bytes); err != nil {
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
