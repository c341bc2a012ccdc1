package memest

import (
	"errors"
	"fmt"
	"slices"

	"github.com/shardbook/shardbook/lib/cost"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/recompute"
)

// Estimate lists the memory of a run. A setup that is not valid is an error, and so is memory that an int64 does not
// hold.
func Estimate(s Setup) (Ledger, error) {
	if err := s.Validate(); err != nil {
		return Ledger{}, err
	}
	s = s.whole()
	plan, err := s.Recompute.Plan(s.Model.Layers)
	if err != nil {
		return Ledger{}, err
	}
	if s.Flash {
		plan = plan.FusedAttention()
	}
	plan[len(plan)-1] &^= recompute.SetOf(recompute.Down) // the head is given it
	var l Ledger
	sheet := newSheet(s.vars())
	states := map[device][]Item{} // most devices have as much as others
	for i, d := range s.Layout.devices(s.Model.Layers) {
		first, blocks := d.first, plan[d.first:d.first+d.blocks]
		d.first = 0
		st := &stage{Setup: s, sheet: sheet, plan: blocks, first: d.embeds, last: d.heads, tensors: s.local(d)}
		if states[d] == nil {
			if states[d], err = s.states(sheet, st.tensors); err != nil {
				return Ledger{}, fmt.Errorf("memest: stage %d: %w", i, err)
			}
		}
		passes, moment, err := st.passes(i)
		if err != nil {
			return Ledger{}, fmt.Errorf("memest: stage %d: %w", i, err)
		}
		l.Stages = append(l.Stages, Stage{Index: i, First: first, Blocks: d.blocks, Moment: moment,
			Items: slices.Concat(states[d], passes)})
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
		return Ledger{}, fmt.Errorf("memest: a model of %d parameters: their bytes are more than an int64 "+
			"holds; give at most %d", n, int64(1)<<56)
	}
	s.Model = cost.Model{Layers: 1, Width: 1, Heads: 1, Vocab: 2, Context: 1}
	l := s.Layout
	if s.Engine != Planned || l.Tensor > 1 || l.Context > 1 || l.Pipeline > 1 || l.Seq || l.Chunks > 1 {
		return Ledger{}, errors.New("memest: a number of parameters says nothing about their shapes: give a model to " +
			"cut it by tensors, " +
			"sequence or pipeline")
	}
	if err := s.Validate(); err != nil {
		return Ledger{}, err
	}
	s = s.whole()
	if square, line := optim.BytesPerParameter(s.Optimizer, params.Tree{params.New("x", s.Precision.Params, 512, 512)}),
		optim.BytesPerParameter(s.Optimizer, params.Tree{params.New("x", s.Precision.Params, 512*512)}); square != line {
		return Ledger{}, fmt.Errorf("memest: a number of parameters says nothing about their shapes, and %T keeps "+
			"other states for other "+
			"shapes: give a model", s.Optimizer)
	}
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
		"b": int64(s.Batch), "s": int64(s.Seq), "h": int64(m.Width), "a": int64(m.Heads), "k": int64(m.KV()),
		"d": int64(m.HeadDim()),
		"f": int64(m.MLPWidth()), "v": int64(m.Vocab), "w": int64(m.PositionRows), "p": int64(p), "t": int64(l.Tensor),
		"r": int64(r),
		"c": int64(l.Context), "n": int64(s.ranks()), "g": s.Bucket, "o": s.Framework,
	}
}

// passes lists what the passes keep at the worst moment, what that moment needs, and buffers.
func (s *stage) passes(index int) (items []Item, moment string, err error) {
	if s.keeps, err = s.Setup.keeps(s.sheet); err != nil {
		return nil, "", err
	}
	worst, err := s.worst()
	if err != nil {
		return nil, "", err
	}
	items = append(s.input(index), s.kept(worst, index)...)
	for _, n := range worst.needs {
		items = append(items, Item{Kind: n.kind, Name: n.name, Count: n.count, Formula: n.formula, Source: s.source()})
	}
	items = append(items, s.buffers()...)
	for i := range items {
		if err := items[i].fill(s.sheet); err != nil {
			return nil, "", err
		}
	}
	return items, worst.name, nil
}

// source says where the lines of the passes come from.
func (s *stage) source() string {
	if s.Engine == Compiled {
		return "lib/gpt as XLA compiles it, tested against its statistics"
	}
	return "what lib/gpt's operations keep, divided as in Korthikanti et al. 2022, §4"
}

// input is what comes into the stage, of all micro-batches in flight.
func (s *stage) input(index int) []Item {
	name := "stage's input"
	if s.first {
		name = "embedding"
	}
	flying, of := s.Layout.inFlight(index, s.Microbatches)
	return []Item{{Kind: Activations, Name: name, Count: (flying + of - 1) / of, Formula: residual, Source: s.source()}}
}

// kept lists the activations that are kept at the worst moment, of all micro-batches in flight: that in hand has what
// the moment needs, the others are whole. Offloaded, the device has only what the block in hand needs.
func (s *stage) kept(worst moment, index int) []Item {
	var items []Item
	flying, of := s.Layout.inFlight(index, s.Microbatches)
	for i, k := range s.keeps {
		whole := int64(0)
		for _, set := range s.plan {
			if set&k.made == 0 {
				whole++
			}
		}
		others := (max(0, flying-of)*whole + of - 1) / of
		here, away := worst.keeps[i]+others, int64(0)
		if s.OffloadActivations { // the host has most when the forward pass is done
			here, away = worst.keeps[i]-worst.away[i], whole+others
		}
		for _, at := range []struct {
			count int64
			host  bool
		}{{here, false}, {away, true}} {
			if at.count > 0 {
				items = append(items, Item{Kind: Activations, Name: k.name, Count: at.count, Formula: k.formula,
					Source: s.source(), Host: at.host})
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
		if s.sharded(3) {
			add(Communication, "gathered parameters of the block in hand and the next", 2, "p*("+s.elementsOf("h.")+")",
				"Rajbhandari et al. 2020, §5.3")
			if outside := s.elementsOf("tok", "head"); outside != "0" {
				add(Communication, "gathered token table and head", 1, "p*("+outside+")", "Rajbhandari et al. 2020, §5.3")
			}
		}
		if s.sharded(2) {
			add(Communication, "whole gradients of the block in hand", 1, "p*("+s.elementsOf("h.")+")",
				"Rajbhandari et al. 2020, §5.2")
		}
		if l.Context > 1 {
			add(Communication, "keys and values of the neighbour, and their gradients", 2, "2*b*s*ceil(k/t)*d*p/c",
				"Liu et al. 2023, §3")
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
