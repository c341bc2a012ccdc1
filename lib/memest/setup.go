package memest

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gomlx/compute/dtypes"

	"github.com/shardbook/shardbook/lib/cost"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/recompute"
)

// Setup is a training run to be estimated.
type Setup struct {
	Model cost.Model

	// Batch is the sequences of a micro-batch on each data-parallel rank, Seq their tokens. 0 is 1, and Model.Context.
	Batch, Seq int
	// Microbatches is how many micro-batches make a step on each data-parallel rank. 0 is 1.
	Microbatches int

	Layout    Layout
	Precision precision.Policy // the zero value is float32 throughout
	Optimizer optim.Optimizer  // nil is AdamW
	Recompute recompute.Policy
	Flash     bool    // attention keeps no scores
	Dropout   float64 // above 0, attention keeps its weights after dropping as well
	Clip      bool    // gradients are clipped by their norm, so that all must be there at once

	// Engine says who runs it.
	Engine Engine
	// OffloadOptimizer keeps the optimizer's states and the master copy in host memory, OffloadActivations what the
	// forward pass keeps of a block.
	OffloadOptimizer, OffloadActivations bool
	// Bucket is the bytes of a buffer in which gradients are communicated. 0 is 25 MB, PyTorch's default (Li et al.
	// 2020, §4.2).
	Bucket int64
	// Framework is what the framework takes for itself on each device, such as a CUDA context, in bytes.
	Framework int64
}

// Layout says how many devices share a run, and what each of them has.
type Layout struct {
	Data   int `json:"data,omitempty"`   // replicas of the model, each with its own sequences
	Tensor int `json:"tensor,omitempty"` // devices that share each block's matrices
	// they share what lies between the matrices as well, by tokens (Korthikanti et al. 2022, §4.2.2)
	Seq bool `json:"seq,omitempty"`
	// Context is the devices that share each sequence by tokens, attention and all.
	Context int `json:"context,omitempty"`

	Pipeline int      `json:"pipeline,omitempty"` // stages
	Schedule Schedule `json:"schedule,omitempty"` // of the stages; "" is 1F1B
	Chunks   int      `json:"chunks,omitempty"`   // pieces of the model that each device of an interleaved pipeline has

	// ZeRO is the stage: 0 shards nothing between data-parallel ranks, 1 the optimizer's states, 2 gradients as well, 3
	// parameters as well (Rajbhandari et al. 2020, §5).
	ZeRO int `json:"zero,omitempty"`
}

// Devices is the number of devices of the layout.
func (l Layout) Devices() int {
	l = l.whole()
	return l.Data * l.Tensor * l.Context * l.Pipeline
}

// whole sets what was left at zero.
func (l Layout) whole() Layout {
	l.Data, l.Tensor, l.Context = cmp.Or(l.Data, 1), cmp.Or(l.Tensor, 1), cmp.Or(l.Context, 1)
	l.Pipeline, l.Chunks = cmp.Or(l.Pipeline, 1), cmp.Or(l.Chunks, 1)
	if l.Schedule == "" {
		l.Schedule = OneFOneB
	}
	return l
}

// Engine is a way to run a training step.
type Engine string

const (
	// Planned keeps gradients from micro-batch to micro-batch and updates at the end, as the frameworks do that books
	// describe. Numbers have the sizes of their types, and operations keep what lib/gpt's do; kernels of one's own may
	// keep less. The package comment says what of it is measured.
	Planned Engine = ""
	// Compiled is this project's lib/train on a CPU: one program a step, compiled by XLA, in which a gradient is used
	// up as soon as it is there where nothing stops that.
	Compiled Engine = "compiled"
)

// Validate returns an error that names the first field which is not valid, with its value and what to do.
func (s Setup) Validate() error {
	if err := s.Model.Validate(); err != nil {
		return err
	}
	l := s.Layout
	for _, f := range []struct {
		name        string
		value, most int
	}{
		{"Batch", s.Batch, 1 << 31}, {"Seq", s.Seq, 1 << 28}, {"Microbatches", s.Microbatches, 1 << 31},
		{"Layout.Data", l.Data, 1 << 31},
		{"Layout.Tensor", l.Tensor, 1 << 20}, {"Layout.Context", l.Context, 1 << 28},
		{"Layout.Pipeline", l.Pipeline, 1 << 14},
		{"Layout.Chunks", l.Chunks, 1 << 14}, {"Layout.ZeRO", l.ZeRO, 3}, {"Bucket", int(s.Bucket), 1 << 50},
		{"Framework", int(s.Framework), 1 << 50},
	} {
		if f.value < 0 {
			return fmt.Errorf("memest: Setup.%s is %d: set it to at least 0, which is its default", f.name, f.value)
		}
		if f.value > f.most {
			return fmt.Errorf("memest: Setup.%s is %d: set it to at most %d", f.name, f.value, f.most)
		}
	}
	s = s.whole()
	l = s.Layout
	m := s.Model
	switch {
	case l.Tensor > m.Heads:
		return fmt.Errorf("memest: Setup.Layout.Tensor is %d, more than the model's %d heads: a head cannot be shared",
			l.Tensor, m.Heads)
	case m.Heads%l.Tensor != 0:
		return fmt.Errorf("memest: Setup.Layout.Tensor is %d, which does not divide the model's %d heads", l.Tensor, m.Heads)
	case m.KV()%l.Tensor != 0 && l.Tensor%m.KV() != 0:
		return fmt.Errorf("memest: Setup.Layout.Tensor is %d and the model has %d key and value heads: one "+
			"must divide the other", l.Tensor, m.KV())
	case m.MLPWidth()%l.Tensor != 0:
		return fmt.Errorf("memest: Setup.Layout.Tensor is %d, which does not divide the width %d inside the MLP",
			l.Tensor, m.MLPWidth())
	case s.Seq > m.Context && m.PositionRows > 0:
		return fmt.Errorf("memest: Setup.Seq is %d, and the model has learned positions for %d: choose "+
			"a shorter sequence", s.Seq, m.Context)
	case s.Seq%l.Context != 0:
		return fmt.Errorf("memest: Setup.Layout.Context is %d, which does not divide the sequence of %d tokens",
			l.Context, s.Seq)
	case l.Seq && s.Seq/l.Context%l.Tensor != 0:
		return fmt.Errorf("memest: Setup.Layout.Seq shares %d tokens between %d devices: choose a "+
			"sequence that divides", s.Seq/l.Context, l.Tensor)
	case l.Pipeline*l.Chunks > m.Layers:
		return fmt.Errorf("memest: Setup.Layout.Pipeline of %d stages in %d chunks needs %d blocks, and the model has %d",
			l.Pipeline, l.Chunks, l.Pipeline*l.Chunks, m.Layers)
	case l.Chunks > 1 && l.Schedule != Interleaved:
		return fmt.Errorf("memest: Setup.Layout.Chunks is %d in schedule %q: chunks are for %q", l.Chunks, l.Schedule,
			Interleaved)
	case !slices.Contains(Schedules(), l.Schedule):
		return fmt.Errorf("memest: Setup.Layout.Schedule is %q: choose one of %q", l.Schedule, Schedules())
	case !(s.Dropout >= 0 && s.Dropout < 1):
		return fmt.Errorf("memest: Setup.Dropout is %g: set it to at least 0 and less than 1", s.Dropout)
	case s.Engine != Planned && s.Engine != Compiled:
		return fmt.Errorf("memest: Setup.Engine is %q: choose %q or %q", s.Engine, Planned, Compiled)
	}
	if s.Engine == Compiled {
		if l.Devices() != l.Data || l.ZeRO > 0 || s.Microbatches > 1 || s.OffloadOptimizer || s.OffloadActivations {
			return fmt.Errorf("memest: Setup.Engine is %q, which runs whole models on data-parallel "+
				"devices: leave it out", Compiled)
		}
		if p := s.Precision.Compute; p != dtypes.Float32 && p != dtypes.BFloat16 ||
			s.Precision.Matmul != (precision.Matmul{}) {
			return fmt.Errorf("memest: Setup.Engine is %q, which is known for float32 and bfloat16 with plain "+
				"products: leave it out", Compiled)
		}
	}
	if _, err := s.Recompute.Plan(m.Layers); err != nil {
		return fmt.Errorf("memest: Setup.Recompute: %w", err)
	}
	if err := s.Precision.Validate(); err != nil {
		return fmt.Errorf("memest: Setup.Precision: %w", err)
	}
	if err := s.Optimizer.Validate(); err != nil {
		return fmt.Errorf("memest: Setup.Optimizer: %w", err)
	}
	return nil
}

// whole sets what was left at zero.
func (s Setup) whole() Setup {
	s.Batch, s.Seq, s.Microbatches = cmp.Or(s.Batch, 1), cmp.Or(s.Seq, s.Model.Context), cmp.Or(s.Microbatches, 1)
	s.Layout = s.Layout.whole()
	if s.Precision == (precision.Policy{}) {
		const f32 = dtypes.Float32
		s.Precision = precision.Policy{Params: f32, Compute: f32, Output: f32, Reduce: f32}
	}
	if s.Optimizer == nil {
		s.Optimizer = optim.AdamW(1e-3)
	}
	s.Bucket = cmp.Or(s.Bucket, 25e6)
	if s.Recompute == "none" {
		s.Recompute = recompute.None
	}
	return s
}
