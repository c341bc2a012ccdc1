package memest

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/shardbook/shardbook/lib/cost"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/recompute"
)

// Estimate predicts the memory of a run, line by line. It returns an error for an invalid setup, and for sizes that
// overflow an int64.
func Estimate(s Setup) (Ledger, error) {
	if err := s.Validate(); err != nil {
		return Ledger{}, err
	}
	s = s.withDefaults()
	plan, err := s.Recompute.Plan(s.Model.Layers)
	if err != nil {
		return Ledger{}, err
	}
	if s.Flash {
		plan = plan.FusedAttention()
	}
	plan[len(plan)-1] &^= recompute.SetOf(recompute.Down) // the head's input is never recomputed
	var l Ledger
	sheet := newSheet(s.vars())
	states := map[device][]Item{} // devices with the same parts of the model have the same states
	for i, d := range s.Parallelism.devices(s.Model.Layers, s.Model.Layers-s.Model.ExpertLayers()) {
		first, blocks := d.first, plan[d.first:d.first+d.blocks]
		d.first = 0
		st := &stage{Setup: s, sheet: sheet, plan: blocks, dense: d.dense, first: d.embeds, last: d.heads,
			tensors: s.local(d)}
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

// OfParameters lists the memory of parameters, gradients and optimizer states for a model of n parameters whose shapes
// are unknown. It ignores Setup.Model. It returns an error for settings that depend on the parameters' shapes.
func OfParameters(n int64, s Setup) (Ledger, error) {
	if n < 1 {
		return Ledger{}, fmt.Errorf("memest: the number of parameters is %d: give at least 1", n)
	}
	if n > mostParameters {
		return Ledger{}, fmt.Errorf("memest: the number of parameters is %d: give at most %d, whose bytes fit an int64",
			n, mostParameters)
	}
	s.Model = cost.Model{Layers: 1, Width: 1, Heads: 1, Vocab: 2, Context: 1}
	l := s.Parallelism
	if s.Method != Planned || l.Tensor > 1 || l.Context > 1 || l.Pipeline > 1 || l.Seq || l.Chunks > 1 {
		return Ledger{}, errors.New("memest: tensor, context and pipeline parallelism and the compiled engine need " +
			"the parameters' shapes, not only their number: give a model")
	}
	if err := s.Validate(); err != nil {
		return Ledger{}, err
	}
	s = s.withDefaults()
	perParameter := func(dims ...int) float64 {
		return optim.BytesPerParameter(s.Optimizer, params.Tree{params.New("x", s.Precision.Params, dims...)})
	}
	if perParameter(512, 512) != perParameter(512*512) {
		return Ledger{}, fmt.Errorf("memest: the states of %T depend on the parameters' shapes, not only on their "+
			"number: give a model", s.Optimizer)
	}
	all := tensor{cost.Tensor{Name: "parameters", Part: "all parameters", Dims: []int{int(n)}, Count: 1}, "P"}
	items, err := s.states(newSheet(vars{"P": n, "n": int64(s.ranks())}), []tensor{all})
	if err != nil {
		return Ledger{}, err
	}
	return Ledger{Stages: []Stage{{Blocks: 1, Items: items}}}, nil
}

func (s Setup) vars() vars {
	m, l := s.Model, s.Parallelism
	r := 1
	if l.Seq {
		r = l.Tensor
	}
	p := s.Precision.Compute.Size()
	return vars{
		"b": int64(s.Batch), "s": int64(s.Seq), "h": int64(m.Width), "a": int64(m.Heads), "k": int64(m.KV()),
		"d": int64(m.HeadDim()), "f": int64(m.MLPWidth()), "v": int64(m.Vocab), "w": int64(m.PositionRows),
		"p": int64(p), "t": int64(l.Tensor), "r": int64(r), "c": int64(l.Context), "n": int64(s.ranks()),
		"g": s.Bucket, "o": s.Framework, "e": int64(l.Expert),
		"E": int64(m.Experts), "K": int64(m.ExpertsPerToken), "S": int64(m.SharedExperts), "F": int64(m.ExpertWidth()),
		"Q": int64(m.QueryRank), "L": int64(m.KVRank), "R": int64(m.RopeWidth), "V": int64(m.ValueDim()),
	}
}

// passes lists the memory of the passes at the worst moment: saved activations, temporary memory and buffers.
func (s *stage) passes(index int) (items []Item, moment string, err error) {
	if s.saved, err = s.Setup.saved(s.sheet); err != nil {
		return nil, "", err
	}
	worst, err := s.worst()
	if err != nil {
		return nil, "", err
	}
	items = append(s.input(index), s.activations(worst, index)...)
	for _, n := range worst.needs {
		items = append(items, Item{Kind: n.kind, Name: n.name, Count: n.count, Formula: n.formula,
			Source: s.source(n.formula)})
	}
	items = append(items, s.buffers()...)
	for i := range items {
		if err := items[i].fill(s.sheet); err != nil {
			return nil, "", err
		}
	}
	return items, worst.name, nil
}

// source says where the formulas of activations come from. Only those of experts and of latent attention have names in
// capitals.
func (s *stage) source(formula string) string {
	switch {
	case s.Method == Compiled:
		return "lib/gpt as XLA compiles it, tested against its statistics"
	case strings.ContainsAny(formula, "EKSF"):
		return "experts with equally many tokens each, none dropped (Gale et al. 2022, MegaBlocks, §4)"
	case strings.ContainsAny(formula, "QLRV"):
		return "latent attention (DeepSeek-AI 2024, DeepSeek-V2, §2.1), its heads expanded"
	}
	return "saved activations of lib/gpt's operations, split as in Korthikanti et al. 2022, §4"
}

// input is the stage's input, of all micro-batches in flight.
func (s *stage) input(index int) []Item {
	name := "stage's input"
	if s.first {
		name = "embedding"
	}
	flying, of := s.Parallelism.inFlight(index, s.Microbatches)
	return []Item{{Kind: Activations, Name: name, Count: (flying + of - 1) / of, Formula: residual,
		Source: s.source(residual)}}
}

// activations lists the saved activations at the worst moment, of all micro-batches in flight: for the micro-batch in
// the backward pass what that moment still needs, for the others everything. With offload, the device has only those of
// the current block.
func (s *stage) activations(worst moment, index int) []Item {
	var items []Item
	flying, of := s.Parallelism.inFlight(index, s.Microbatches)
	for i, k := range s.saved {
		all := int64(0)
		for block := range s.plan {
			if s.saves(block, k) {
				all++
			}
		}
		others := (max(0, flying-of)*all + of - 1) / of
		here, away := worst.saved[i]+others, int64(0)
		if s.OffloadActivations { // the host has most at the end of the forward pass
			here, away = worst.saved[i]-worst.below[i], all+others
		}
		for _, at := range []struct {
			count int64
			host  bool
		}{{here, false}, {away, true}} {
			if at.count > 0 {
				items = append(items, Item{Kind: Activations, Name: k.name, Count: at.count, Formula: k.formula,
					Source: s.source(k.formula), Host: at.host})
			}
		}
	}
	return items
}

// buffers lists the buffers of communication and the framework's memory.
func (s *stage) buffers() []Item {
	var items []Item
	l := s.Parallelism
	add := func(kind Kind, name string, count int64, formula, source string) {
		items = append(items, Item{Kind: kind, Name: name, Count: count, Formula: formula, Source: source})
	}
	if s.Method == Planned {
		if s.ranks() > 1 {
			add(Communication, "gradient bucket", 1, "g", "Li et al. 2020, §4.2")
		}
		if s.sharded(3) {
			add(Communication, "gathered parameters of the current block and the next", 2, "p*("+s.block()+")",
				"Rajbhandari et al. 2020, §5.3")
			if outside := s.elementsOf("tok", "head"); outside != "0" {
				add(Communication, "gathered token table and head", 1, "p*("+outside+")",
					"Rajbhandari et al. 2020, §5.3")
			}
		}
		if s.sharded(2) {
			add(Communication, "unsharded gradients of the current block", 1, "p*("+s.block()+")",
				"Rajbhandari et al. 2020, §5.2")
		}
		if l.Context > 1 {
			formula := "2*b*s*ceil(k/t)*d*p/c"
			if s.Model.KVRank > 0 {
				formula = "b*s*a*(d+V)*p/(c*t)"
			}
			add(Communication, "keys and values of the neighbour, and their gradients", 2, formula,
				"Liu et al. 2023, §3")
		}
		if l.Expert*l.Tensor > 1 && s.dense < len(s.plan) {
			add(Communication, "tokens being sent to their experts", 1, "K*b*s*h*p/(c*t)", "Lepikhin et al. 2020, §3")
		}
		if l.Seq {
			add(Communication, "gathered tokens", 1, "b*s*h*p/c", "Korthikanti et al. 2022, §4.2.2")
		}
		if l.Pipeline > 1 {
			add(Communication, "activation and gradient being sent", 2, residual, "Narayanan et al. 2021, §2.2")
		}
	}
	if s.Framework > 0 {
		add(Overhead, "framework", 1, "o", "as given")
	}
	return items
}
