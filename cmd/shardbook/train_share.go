package main

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/shardbook/shardbook/lib/gpt"
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

// Mesh axes besides train.Axis.
const (
	ringAxis    = "ring"
	ulyssesAxis = "ulysses"
	tensorAxis  = "tensor"
)

// shareSettings say how devices share what one alone would compute for a row of the batch: each layer, and each sequence.
type shareSettings struct {
	Tensor         int                `json:"tensor,omitempty"` // devices that share layers; 0 is none, and 1 is written so
	TensorSequence bool               `json:"tensor_sequence,omitempty"`
	TensorOverlap  bool               `json:"tensor_overlap,omitempty"`
	SeqParallel    int                `json:"seq_parallel,omitempty"` // devices that share sequences; as Tensor
	SeqMethod      string             `json:"seq_method,omitempty"`   // "" is seqRing
	SeqUlysses     int                `json:"seq_ulysses,omitempty"`  // of seqHybrid; 0 is for the heads to say
	Placement      sequence.Placement `json:"placement,omitempty"`    // "" is the method's
}

func (s *shareSettings) flags(f *pflag.FlagSet) {
	f.IntVar(&s.Tensor, "tensor", s.Tensor, "devices that share each layer: tensor parallelism, in one program; 0 or 1 is none")
	f.BoolVar(&s.TensorSequence, "tensor-sequence", s.TensorSequence, "with --tensor, between the shared layers each device has its part of the "+
		"tokens (Megatron's sequence parallelism): less memory for activations, and as many bytes sent")
	f.BoolVar(&s.TensorOverlap, "tensor-overlap", s.TensorOverlap, "with --tensor-sequence, send in chunks, so that one can travel while another is multiplied")
	f.IntVar(&s.SeqParallel, "seq-parallel", s.SeqParallel, "devices that share each sequence: sequence, or context, parallelism, in one program; 0 or 1 is none")
	f.StringVar(&s.SeqMethod, "seq-method", s.SeqMethod, "with --seq-parallel, how attention sees all tokens: ulysses (all-to-alls exchange heads for "+
		"tokens), ring (keys and values go around), allgather (they are gathered) or hybrid (rings of groups of ulysses) (default ring)")
	f.IntVar(&s.SeqUlysses, "seq-ulysses", s.SeqUlysses, "with --seq-method hybrid, devices of a group of ulysses (default the largest number below "+
		"--seq-parallel that divides it and a device's key/value heads, of which --tensor leaves it a part)")
	f.StringVar((*string)(&s.Placement), "placement", string(s.Placement), "with --seq-parallel, which tokens of a sequence a device has: contiguous, "+
		"striped or zigzag (default zigzag, with which causal attention is as much work for each; ulysses has contiguous alone)")
}

// normalize gives one device by itself, which shares nothing, its one number.
func (s *shareSettings) normalize() {
	for _, n := range []*int{&s.Tensor, &s.SeqParallel} {
		if *n == 1 {
			*n = 0
		}
	}
	s.SeqMethod = strings.ToLower(s.SeqMethod)
	s.Placement = sequence.Placement(strings.ToLower(string(s.Placement)))
}

// sharing is the flag, with its value, by which devices share layers or sequences, or "".
func (s *shareSettings) sharing() string {
	switch {
	case s.Tensor != 0:
		return fmt.Sprintf("--tensor=%d", s.Tensor)
	case s.SeqParallel != 0:
		return fmt.Sprintf("--seq-parallel=%d", s.SeqParallel)
	}
	return ""
}

// method is that of attention.
func (s *shareSettings) method() string { return cmp.Or(s.SeqMethod, seqRing) }

// tensorGroup is the devices that share layers.
func (s *shareSettings) tensorGroup() (t tensor.Group) {
	if s.Tensor > 0 {
		t = tensor.Group{Axis: tensorAxis, Sequence: s.TensorSequence, Overlap: s.TensorOverlap}
	}
	return t
}

// sequenceGroup is the devices that share sequences.
func (s *shareSettings) sequenceGroup() (g sequence.Group) {
	if s.SeqParallel == 0 {
		return g
	}
	if m := s.method(); m != seqUlysses {
		g.Ring, g.Gather, g.Placement = ringAxis, m == seqGather, cmp.Or(s.Placement, sequence.Zigzag)
	}
	if m := s.method(); m == seqUlysses || m == seqHybrid {
		g.Ulysses = ulyssesAxis
	}
	return g
}

// model is a model as the devices compute it.
func (p *parallel) model(c gpt.Config) train.Model {
	if p.sharing() == "" || p.Sync == syncAuto { // the compiler cuts the model of one device
		return c
	}
	return gpt.Parallel{Config: c, Tensor: p.tensorGroup(), Sequence: p.sequenceGroup()}
}
