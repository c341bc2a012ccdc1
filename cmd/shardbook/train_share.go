package main

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/shardbook/shardbook/lib/gpt"
	layouts "github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/sequence"
	"github.com/shardbook/shardbook/lib/tensor"
	"github.com/shardbook/shardbook/lib/train"
)

// Ways of attention whose tokens are on several devices.
const (
	seqRing    = "ring"      // keys and values go around
	seqUlysses = "ulysses"   // heads are exchanged for tokens
	seqGather  = "allgather" // keys and values are gathered
	seqHybrid  = "hybrid"    // rings of groups within which heads are exchanged
)

func seqMethods() []string { return []string{seqUlysses, seqRing, seqGather, seqHybrid} }

// method is that of attention.
func (p *parallel) method() string { return cmp.Or(p.SeqMethod, seqRing) }

// model is a model as the devices compute it.
func (p *parallel) model(c gpt.Config) train.Model {
	if !p.sharing() || p.Sync == syncAuto { // the compiler cuts the model of one device
		return c
	}
	m := gpt.Parallel{Config: c, Sequence: p.sequenceGroup()}
	if p.Tensor > 0 {
		m.Tensor = tensor.Group{Axis: layouts.Tensor, Sequence: p.TensorSequence, Overlap: p.TensorOverlap}
	}
	return m
}

// sequenceGroup is the devices that share sequences.
func (p *parallel) sequenceGroup() (g sequence.Group) {
	if p.SeqParallel == 0 {
		return g
	}
	if m := p.method(); m != seqUlysses {
		g.Ring, g.Gather, g.Placement = layouts.Ring, m == seqGather, cmp.Or(p.Placement, sequence.Zigzag)
	}
	if m := p.method(); m == seqUlysses || m == seqHybrid {
		g.Ulysses = layouts.Ulysses
	}
	return g
}

// degrees are the numbers of devices of a ring and of a group of Ulysses, which is where it is not given what suits a model with so
// many key/value heads on each device. Whether the heads can be exchanged is for the model to say.
func (p *parallel) degrees(keyHeads int) (ring, ulysses int, err error) {
	n := max(1, p.SeqParallel)
	switch p.method() {
	case seqUlysses:
		return 1, n, nil
	case seqHybrid:
		if ulysses = p.SeqUlysses; ulysses == 0 {
			ulysses = largestBelow(n, keyHeads)
		}
		if ulysses == 1 {
			return 0, 0, fmt.Errorf("--seq-parallel=%d with --seq-method %s: no number between 1 and it divides it and the %d key/value heads of a device: "+
				"choose other numbers, or --seq-method %s", n, seqHybrid, keyHeads, seqRing)
		}
		return n / ulysses, ulysses, nil
	}
	return n, 1, nil
}

// perCopy is how many ranks each pipeline or ring, or rings of pipelines, has: those that have the same rows.
func (p *parallel) perCopy() int {
	n := max(1, p.Pipe)
	if p.SeqRanks {
		n *= max(1, p.SeqParallel) / max(1, p.SeqUlysses)
	}
	return n
}

// largestBelow is the largest number below n that divides it and another.
func largestBelow(n, other int) int {
	for u := n / 2; u > 1; u-- {
		if n%u == 0 && other%u == 0 {
			return u
		}
	}
	return 1
}

// keyHeads are a device's key/value heads.
func (j *job) keyHeads() int {
	return max(1, cmp.Or(j.Model.KVHeads, j.Model.Heads)/max(1, j.Parallel.Tensor))
}

// validateSequence is validate for devices that share sequences.
func (p *parallel) validateSequence() error {
	m, n := p.method(), p.SeqParallel
	switch {
	case n == 0:
		return nil
	case !slices.Contains(seqMethods(), m):
		return fmt.Errorf("--seq-method=%.40s: want one of %q", m, seqMethods())
	case p.Placement != "" && !slices.Contains(sequence.Placements(), p.Placement):
		return fmt.Errorf("--placement=%.40s: want one of %q", p.Placement, sequence.Placements())
	case m == seqUlysses && p.Placement != "" && p.Placement != sequence.Contiguous:
		return fmt.Errorf("--placement=%s and --seq-method=%s, which has %s tokens alone: leave one of them out", p.Placement, m, sequence.Contiguous)
	case p.SeqRanks && m != seqRing && (m != seqHybrid || p.SeqUlysses == 0):
		return fmt.Errorf("--seq-ranks and --seq-method=%s: it is for rings; choose --seq-method %s, or %s with --seq-ulysses, the devices of a rank",
			m, seqRing, seqHybrid)
	case p.SeqUlysses != 0 && m != seqHybrid:
		return fmt.Errorf("--seq-ulysses=%d and --seq-method=%s: leave it out, or choose --seq-method %s", p.SeqUlysses, m, seqHybrid)
	case p.SeqUlysses != 0 && (p.SeqUlysses < 2 || p.SeqUlysses >= n || n%p.SeqUlysses != 0):
		return fmt.Errorf("--seq-ulysses=%d: want a number between 1 and --seq-parallel %d that divides it, or 0 for one that suits the heads", p.SeqUlysses, n)
	}
	return nil
}

// suitsShared returns an error if devices cannot share the job's layers and sequences, where they are to. What a plan would refuse is
// left to it, but for models that the compiler cuts.
func (j *job) suitsShared(r train.Recipe, l layouts.Layout) error {
	p := j.Parallel
	if p.SeqParallel > j.Model.Seq {
		return fmt.Errorf("--seq-parallel=%d: a sequence has --seq %d tokens, and each device takes at least one: want at most %[2]d",
			p.SeqParallel, j.Model.Seq)
	}
	if !p.sharing() {
		return nil
	}
	if _, err := j.Model.Rules().Cuts(j.Model.Params(), max(1, p.Tensor)); err != nil {
		return fmt.Errorf("--tensor=%d: %w", p.Tensor, inFlags(err))
	}
	if p.Sync == syncAuto { // as if it were shared by hand
		p.Sync = syncSPMD
		r.Model = p.model(j.Model)
	}
	_, err := layouts.NewPlan(r, l)
	return inFlags(err)
}
