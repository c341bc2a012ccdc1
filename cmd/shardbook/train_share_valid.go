package main

import (
	"fmt"
	"slices"

	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/sequence"
	"github.com/shardbook/shardbook/lib/train"
)

// stray is an error for a flag that was given without the one that it belongs to.
func (s *shareSettings) stray() error {
	for _, f := range []struct {
		name, what, add string
		stray           bool
	}{
		{"tensor-sequence", "no devices share layers", "--tensor, at least 2", s.TensorSequence && s.Tensor == 0},
		{"tensor-overlap", "it cuts what that sends into chunks", "--tensor-sequence, with --tensor", s.TensorOverlap && !s.TensorSequence},
		{"seq-method", "no devices share sequences", "--seq-parallel, at least 2", s.SeqMethod != "" && s.SeqParallel == 0},
		{"seq-ulysses", "no devices share sequences", "--seq-parallel, at least 2", s.SeqUlysses != 0 && s.SeqParallel == 0},
		{"placement", "no devices share sequences", "--seq-parallel, at least 2", s.Placement != "" && s.SeqParallel == 0},
	} {
		if f.stray {
			return fmt.Errorf("--%s: %s: leave it out, or add %s", f.name, f.what, f.add)
		}
	}
	return nil
}

// validateShared is validate where devices share layers or sequences.
func (p *parallel) validateShared(batch int) error {
	way := p.sharing()
	for _, f := range []struct {
		name, why string
		given     bool
	}{
		{p.pipeSettings.given(), "", p.pipeSettings.given() != ""}, {p.zeroSettings.given(), "", p.zeroSettings.given() != ""},
		{"accumulate", ", which is one program and has no micro-batches", p.Accumulate > 1},
		{"bucket-bytes", ", which is one program and has no buckets", p.BucketBytes > 0},
		{"every", ", which is one program in step", p.Every > 1},
		{"servers", ", which is one program and has no servers", p.Servers > 0},
		{"compress-gradients", ", which is one program and sends them as they are", p.Compress != ""},
	} {
		if f.given {
			return fmt.Errorf("--%s and %s%s: leave one of them out", f.name, way, f.why)
		}
	}
	switch {
	case p.Sync != syncSPMD && p.Sync != syncAuto:
		return fmt.Errorf("--sync=%s and %s, which is one program: leave out --sync, or choose --sync %s", p.Sync, way, syncSPMD)
	case p.Sync == syncAuto && p.SeqParallel > 0:
		return fmt.Errorf("--sync=%s and --seq-parallel=%d, which the compiler does not find by itself: leave out --sync, or choose --sync %s",
			p.Sync, p.SeqParallel, syncSPMD)
	case p.Sync == syncAuto && p.TensorSequence:
		return fmt.Errorf("--sync=%s leaves it to the compiler what is sent when: leave out --tensor-sequence and --tensor-overlap, or choose --sync %s",
			p.Sync, syncSPMD)
	case batch%p.Data != 0:
		return fmt.Errorf("--batch=%d cannot be divided into equal parts for --data %d: choose a multiple of it", batch, p.Data)
	}
	return p.validateSequence()
}

// shows is an error for a flag that only ranks know, where devices run one program.
func (p *parallel) shows(flag string) error {
	const nothing = "one program on all devices shows nothing of what is in it"
	if way := p.sharing(); way != "" {
		return fmt.Errorf("--%s and %s: %s: leave one of them out", flag, way, nothing)
	}
	return fmt.Errorf("--%s: %s: choose --sync, one of %q", flag, nothing, p.rankWays())
}

// validateSequence is validate for devices that share sequences.
func (s *shareSettings) validateSequence() error {
	m, n := s.method(), s.SeqParallel
	switch {
	case n == 0:
		return nil
	case !slices.Contains(seqMethods(), m):
		return fmt.Errorf("--seq-method=%.40s: want one of %q", m, seqMethods())
	case s.Placement != "" && !slices.Contains(sequence.Placements(), s.Placement):
		return fmt.Errorf("--placement=%.40s: want one of %q", s.Placement, sequence.Placements())
	case m == seqUlysses && s.Placement != "" && s.Placement != sequence.Contiguous:
		return fmt.Errorf("--placement=%s and --seq-method=%s, which has %s tokens alone: leave one of them out", s.Placement, m, sequence.Contiguous)
	case s.SeqUlysses != 0 && m != seqHybrid:
		return fmt.Errorf("--seq-ulysses=%d and --seq-method=%s: leave it out, or choose --seq-method %s", s.SeqUlysses, m, seqHybrid)
	case s.SeqUlysses != 0 && (s.SeqUlysses < 2 || s.SeqUlysses >= n || n%s.SeqUlysses != 0):
		return fmt.Errorf("--seq-ulysses=%d: want a number between 1 and --seq-parallel %d that divides it, or 0 for one that suits the heads", s.SeqUlysses, n)
	}
	return nil
}

// suitsShared returns an error if devices cannot share the job's layers and sequences, where they are to.
func (j *job) suitsShared(r train.Recipe) error {
	p := j.Parallel
	if p.sharing() == "" {
		return nil
	}
	if p.SeqParallel > j.Model.Seq {
		return fmt.Errorf("--seq-parallel=%d: a sequence has --seq %d tokens, and each device takes at least one: want at most %[2]d",
			p.SeqParallel, j.Model.Seq)
	}
	cuts, err := j.Model.Rules().Cuts(j.Model.Params(), max(1, p.Tensor))
	if err != nil {
		return fmt.Errorf("--tensor=%d: %w", p.Tensor, inFlags(err))
	}
	axes, err := j.axes()
	if err != nil {
		return err
	}
	model, ok := r.Model.(gpt.Parallel)
	if !ok {
		return nil
	}
	if _, err := model.Shares(func(name string) (int, error) {
		for _, axis := range axes {
			if axis.Name == name {
				return axis.Size, nil
			}
		}
		return 0, fmt.Errorf("the mesh has axes %v and no %q", axes, name)
	}); err != nil {
		return fmt.Errorf("%s: %w", p.sharing(), inFlags(err))
	}
	return joins(r, cuts, j.Optimizer, p.Tensor)
}

// joins returns an error if an optimizer's states of cut parameters are not those of the whole ones in pieces.
func joins(r train.Recipe, cuts []*params.Cut, optimizer string, ranks int) error {
	for i, s := range r.Model.Params().As(r.Policy().Params) {
		if !optim.Joins(r.Rule, s, optim.CutOf(cuts[i])) {
			return fmt.Errorf("--optimizer=%s keeps numbers of blocks of %s, which --tensor=%d cuts: choose another --optimizer, or leave out --tensor",
				optimizer, s, ranks)
		}
	}
	return nil
}
