package memest

import (
	"errors"
	"fmt"

	"github.com/shardbook/shardbook/lib/cost"
)

// Estimate lists the memory of a run. A setup that is not valid is an error, and so is memory that an int64 does not hold.
func Estimate(s Setup) (Ledger, error) {
	if err := s.Validate(); err != nil {
		return Ledger{}, err
	}
	s = s.whole()
	plan, err := s.Recompute.Plan(s.Model.Layers)
	if err != nil {
		return Ledger{}, err
	}
	var l Ledger
	sheet := newSheet(s.vars())
	for i, blocks := range cut(s.Model.Layers, s.Layout.Pipeline) {
		first, last := blocks[0], i == s.Layout.Pipeline-1
		st := &stage{Setup: s, sheet: sheet, plan: plan[blocks[0]:blocks[1]], first: i == 0, last: last,
			tensors: s.local(first, blocks[1]-first, last)}
		items, moment, err := st.items(i)
		if err != nil {
			return Ledger{}, fmt.Errorf("memest: stage %d: %w", i, err)
		}
		l.Stages = append(l.Stages, Stage{Index: i, First: first, Blocks: blocks[1] - first, Moment: moment, Items: items})
	}
	return l, nil
}

// OfParameters lists the memory of the parameters alone, for a model of which nothing else is known. The setup's model
// is left out.
func OfParameters(n int64, s Setup) (Ledger, error) {
	if n < 1 {
		return Ledger{}, fmt.Errorf("memest: a model of %d parameters: give at least 1", n)
	}
	if n > 1<<56 {
		return Ledger{}, fmt.Errorf("memest: a model of %d parameters: their bytes are more than an int64 holds; give at most %d", n, int64(1)<<56)
	}
	s.Model = cost.Model{Layers: 1, Width: 1, Heads: 1, Vocab: 2, Context: 1}
	l := s.Layout
	if s.Engine != Planned || l.Tensor > 1 || l.Context > 1 || l.Pipeline > 1 || l.Seq || l.Chunks > 1 {
		return Ledger{}, errors.New("memest: a number of parameters says nothing about their shapes: give a model to cut it by tensors, " +
			"sequence or pipeline")
	}
	if err := s.Validate(); err != nil {
		return Ledger{}, err
	}
	s = s.whole()
	all := tensor{cost.Tensor{Name: "parameters", Part: "all parameters", Dims: []int{int(n)}, Count: 1}, "P"}
	items, err := s.states(newSheet(vars{"P": n, "n": int64(s.ranks())}), []tensor{all})
	if err != nil {
		return Ledger{}, err
	}
	return Ledger{Stages: []Stage{{Blocks: 1, Items: items}}}, nil
}

// vars are the names that formulas use.
func (s Setup) vars() vars {
	m, l := s.Model, s.Layout
	r := 1
	if l.Seq {
		r = l.Tensor
	}
	p := s.Precision.Compute.Size()
	return vars{
		"b": int64(s.Batch), "s": int64(s.Seq), "h": int64(m.Width), "a": int64(m.Heads), "k": int64(m.KV()), "d": int64(m.HeadDim()),
		"f": int64(m.MLPWidth()), "v": int64(m.Vocab), "w": int64(m.PositionRows), "p": int64(p), "t": int64(l.Tensor), "r": int64(r),
		"c": int64(l.Context), "n": int64(s.ranks()), "g": s.Bucket, "o": s.Framework,
	}
}

// items lists a stage's memory: its states, what the passes keep at the worst moment, and what that moment needs.
func (s *stage) items(index int) ([]Item, string, error) {
	items, err := s.states(s.sheet, s.tensors)
	if err != nil {
		return nil, "", err
	}
	if s.keeps, err = s.Setup.keeps(s.sheet); err != nil {
		return nil, "", err
	}
	worst, err := s.worst()
	if err != nil {
		return nil, "", err
	}
	passes := append(s.input(), s.kept(worst, index)...)
	for _, n := range worst.needs {
		passes = append(passes, Item{Kind: n.kind, Name: n.name, Count: n.count, Formula: n.formula, Source: buffers})
	}
	passes = append(passes, s.buffers()...)
	for i := range passes {
		if err := passes[i].fill(s.sheet); err != nil {
			return nil, "", err
		}
	}
	return append(items, passes...), worst.name, nil
}

// input is what comes into the stage.
func (s *stage) input() []Item {
	name := "stage's input"
	if s.first {
		name = "embedding"
	}
	return []Item{{Kind: Activations, Name: name, Count: 1, Formula: residual, Source: buffers}}
}

// kept lists the activations that are kept at the worst moment, of all micro-batches in flight: that in hand has what the
// moment needs, the others are whole. In host memory there may be all but what the block in hand needs.
func (s *stage) kept(worst moment, index int) []Item {
	var items []Item
	flying, of := s.Layout.inFlight(index, s.Microbatches)
	for i, k := range s.keeps {
		whole := int64(0)
		for _, set := range s.plan {
			if !set.Has(k.op) {
				whole++
			}
		}
		away := worst.away[i] + (max(0, flying-of)*whole+of-1)/of
		here := worst.keeps[i] - worst.away[i]
		if !s.OffloadActivations {
			away, here = 0, here+away
		}
		for _, at := range []struct {
			count int64
			host  bool
		}{{here, false}, {away, true}} {
			if at.count > 0 {
				items = append(items, Item{Kind: Activations, Name: k.name, Count: at.count, Formula: k.formula, Source: buffers, Host: at.host})
			}
		}
	}
	return items
}

// buffers lists what communication and the framework take.
func (s *stage) buffers() []Item {
	var items []Item
	l := s.Layout
	add := func(kind Kind, name string, count int64, formula, source string) {
		items = append(items, Item{Kind: kind, Name: name, Count: count, Formula: formula, Source: source})
	}
	if s.Engine == Planned {
		if s.ranks() > 1 {
			add(Communication, "gradient bucket", 1, "g", "Li et al. 2020, §4.2")
		}
		if l.ZeRO == 3 && s.ranks() > 1 {
			add(Communication, "gathered parameters of the block in hand and the next", 2, "p*("+s.elementsOf("h.")+")", "Rajbhandari et al. 2020, §5.3")
		}
		if l.Seq {
			add(Communication, "gathered tokens", 1, "b*s*h*p/c", "Korthikanti et al. 2022, §4.2.2")
		}
		if l.Pipeline > 1 {
			add(Communication, "activation and gradient on their way", 2, residual, "Narayanan et al. 2021, §2.2")
		}
	}
	if s.Framework > 0 {
		add(Overhead, "framework", 1, "o", "as given")
	}
	return items
}
