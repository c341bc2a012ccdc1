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

// Setup describes the training run to estimate.
type Setup struct {
	Model cost.Model

	Batch        int // sequences of a micro-batch on each data-parallel rank; defaults to 1
	Seq          int // tokens of a sequence; defaults to Model.Context
	Microbatches int // micro-batches of a step on each data-parallel rank; defaults to 1

	Parallelism Parallelism
	Precision   precision.Policy // defaults to float32 throughout
	Optimizer   optim.Optimizer  // defaults to AdamW
	Recompute   recompute.Policy
	Flash       bool    // flash attention, which saves no scores
	Dropout     float64 // above 0, attention also saves its weights after dropout
	Clip        bool    // gradients are clipped by their global norm, so that all of them exist at once

	Method             Method
	OffloadOptimizer   bool // optimizer states and master weights are in host memory
	OffloadActivations bool // saved activations are in host memory

	// Bucket is the size in bytes of a gradient bucket. It defaults to 25 MB, as in PyTorch (Li et al. 2020, §4.2).
	Bucket int64
	// Framework is what the framework itself uses on each device, such as a CUDA context, in bytes.
	Framework int64
}

// Parallelism is the size of each parallel dimension of a run. Sizes default to 1.
type Parallelism struct {
	Data   int `json:"data,omitempty"`   // data parallelism: replicas of the model
	Tensor int `json:"tensor,omitempty"` // tensor parallelism within each block
	// Seq adds Megatron's sequence parallelism: the tensor-parallel devices also split the tokens between the matmuls
	// (Korthikanti et al. 2022, §4.2.2).
	Seq     bool `json:"seq,omitempty"`
	Context int  `json:"context,omitempty"` // context parallelism: devices that split each sequence, also in attention
	// Expert is the number of data-parallel devices that together have one copy of the routed experts; it divides Data.
	// Tokens travel to the devices of their experts and back (Lepikhin et al. 2020, §3). Tensor-parallel devices have
	// different routed experts too, each whole, and route a part of the tokens each (Liu et al. 2025, "MoE Parallel
	// Folding").
	Expert int `json:"expert,omitempty"`

	Pipeline int      `json:"pipeline,omitempty"` // pipeline stages
	Schedule Schedule `json:"schedule,omitempty"` // of the pipeline; defaults to 1F1B
	Chunks   int      `json:"chunks,omitempty"`   // model chunks on each device of an interleaved pipeline

	// ZeRO is the stage, from 0 to 3: 1 shards optimizer states over data-parallel ranks, 2 gradients as well, 3
	// parameters as well (Rajbhandari et al. 2020, §5).
	ZeRO int `json:"zero,omitempty"`
}

// Devices returns the number of devices of the layout.
func (l Parallelism) Devices() int {
	l = l.withDefaults()
	return l.Data * l.Tensor * l.Context * l.Pipeline
}

func (l Parallelism) withDefaults() Parallelism {
	l.Data, l.Tensor, l.Context = cmp.Or(l.Data, 1), cmp.Or(l.Tensor, 1), cmp.Or(l.Context, 1)
	l.Pipeline, l.Chunks, l.Expert = cmp.Or(l.Pipeline, 1), cmp.Or(l.Chunks, 1), cmp.Or(l.Expert, 1)
	if l.Schedule == "" {
		l.Schedule = OneFOneB
	}
	return l
}

// Method is a way to run a training step.
type Method string

const (
	// Planned accumulates the gradients of all micro-batches in buffers and updates at the end of the step, as PyTorch
	// does. Operations save what those of lib/gpt save; custom kernels may save less.
	Planned Method = ""
	// Compiled is lib/train on a CPU: XLA compiles the step to one program, which applies a gradient as soon as it is
	// computed unless clipping, loss scaling or data parallelism need all of them first.
	Compiled Method = "compiled"
)

// Validate returns an error that names the first invalid field, its value, and what to do.
func (s Setup) Validate() error {
	if err := s.Model.Validate(); err != nil {
		return err
	}
	l := s.Parallelism
	for _, f := range []struct {
		name        string
		value, most int
	}{
		{"Batch", s.Batch, 1 << 31}, {"Seq", s.Seq, 1 << 28}, {"Microbatches", s.Microbatches, 1 << 31},
		{"Parallelism.Data", l.Data, 1 << 31}, {"Parallelism.Tensor", l.Tensor, 1 << 20},
		{"Parallelism.Context", l.Context, 1 << 28}, {"Parallelism.Pipeline", l.Pipeline, 1 << 14},
		{"Parallelism.Chunks", l.Chunks, 1 << 14}, {"Parallelism.ZeRO", l.ZeRO, 3},
		{"Parallelism.Expert", l.Expert, 1 << 16},
		{"Bucket", int(s.Bucket), 1 << 50}, {"Framework", int(s.Framework), 1 << 50},
	} {
		if f.value < 0 {
			return fmt.Errorf("memest: Setup.%s is %d: set it to at least 0 (0 means its default)", f.name, f.value)
		}
		if f.value > f.most {
			return fmt.Errorf("memest: Setup.%s is %d: set it to at most %d", f.name, f.value, f.most)
		}
	}
	s = s.withDefaults()
	l = s.Parallelism
	m := s.Model
	switch {
	case m.Heads%l.Tensor != 0:
		return fmt.Errorf("memest: Setup.Parallelism.Tensor is %d, which does not divide the model's %d heads", l.Tensor,
			m.Heads)
	case m.KV()%l.Tensor != 0 && l.Tensor%m.KV() != 0:
		return fmt.Errorf("memest: Setup.Parallelism.Tensor is %d and the model has %d key and value heads: one "+
			"must divide the other", l.Tensor, m.KV())
	case m.ExpertLayers() < m.Layers && m.MLPWidth()%l.Tensor != 0:
		return fmt.Errorf("memest: Setup.Parallelism.Tensor is %d, which does not divide the MLP's hidden width %d",
			l.Tensor, m.MLPWidth())
	case m.SharedExperts*m.ExpertWidth()%l.Tensor != 0:
		return fmt.Errorf("memest: Setup.Parallelism.Tensor is %d, which does not divide the shared experts' hidden "+
			"width %d", l.Tensor, m.SharedExperts*m.ExpertWidth())
	case l.Expert > 1 && m.Experts == 0:
		return fmt.Errorf("memest: Setup.Parallelism.Expert is %d and the model has no experts: set it to 1", l.Expert)
	case m.Experts%(l.Expert*l.Tensor) != 0:
		return fmt.Errorf("memest: Setup.Parallelism.Expert is %d and Tensor is %d, whose product does not divide the "+
			"model's %d experts", l.Expert, l.Tensor, m.Experts)
	case l.Data%l.Expert != 0:
		return fmt.Errorf("memest: Setup.Parallelism.Expert is %d, which does not divide the %d data-parallel devices",
			l.Expert, l.Data)
	case s.Seq > m.Context && m.PositionRows > 0:
		return fmt.Errorf("memest: Setup.Seq is %d, and the model has learned positions for %d: choose "+
			"a shorter sequence", s.Seq, m.Context)
	case s.Seq%l.Context != 0:
		return fmt.Errorf("memest: Setup.Parallelism.Context is %d, which does not divide the sequence of %d tokens",
			l.Context, s.Seq)
	case l.Seq && s.Seq/l.Context%l.Tensor != 0:
		return fmt.Errorf("memest: Setup.Parallelism.Seq is set and its %d devices do not divide %d tokens: choose "+
			"another sequence length", l.Tensor, s.Seq/l.Context)
	case m.Experts > 0 && s.Seq/l.Context%l.Tensor != 0:
		return fmt.Errorf("memest: Setup.Parallelism.Tensor is %d, which does not divide the %d tokens that the router "+
			"takes: choose another sequence length", l.Tensor, s.Seq/l.Context)
	case l.Pipeline*l.Chunks > m.Layers:
		return fmt.Errorf("memest: Setup.Parallelism.Pipeline is %d with %d chunks each, which needs %d blocks; the "+
			"model has %d", l.Pipeline, l.Chunks, l.Pipeline*l.Chunks, m.Layers)
	case l.Chunks > 1 && l.Schedule != Interleaved:
		return fmt.Errorf("memest: Setup.Parallelism.Chunks is %d and Schedule is %q: only %q has chunks", l.Chunks,
			l.Schedule, Interleaved)
	case !slices.Contains(Schedules(), l.Schedule):
		return fmt.Errorf("memest: Setup.Parallelism.Schedule is %q: choose one of %q", l.Schedule, Schedules())
	case !(s.Dropout >= 0 && s.Dropout < 1):
		return fmt.Errorf("memest: Setup.Dropout is %g: set it to at least 0 and less than 1", s.Dropout)
	case s.Method != Planned && s.Method != Compiled:
		return fmt.Errorf("memest: Setup.Method is %q: choose %q or %q", s.Method, Planned, Compiled)
	}
	if s.Method == Compiled {
		if m.Experts > 0 || m.KVRank > 0 || m.QKNorm != "" || m.Sinks {
			return fmt.Errorf("memest: Setup.Method is %q, and what XLA needs for experts, latent attention, sinks and "+
				"normalized queries was not measured: leave Method empty", Compiled)
		}
		if l.Devices() != l.Data || l.ZeRO > 0 || s.Microbatches > 1 || s.OffloadOptimizer || s.OffloadActivations {
			return fmt.Errorf("memest: Setup.Method is %q, which supports only plain data parallelism without "+
				"accumulation or offload: leave Method empty", Compiled)
		}
		if p := s.Precision.Compute; p != dtypes.Float32 && p != dtypes.BFloat16 ||
			s.Precision.Matmul != (precision.Matmul{}) {
			return fmt.Errorf("memest: Setup.Method is %q, which supports only float32 and bfloat16 matmuls: "+
				"leave Method empty", Compiled)
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

func (s Setup) withDefaults() Setup {
	s.Batch, s.Seq, s.Microbatches = cmp.Or(s.Batch, 1), cmp.Or(s.Seq, s.Model.Context), cmp.Or(s.Microbatches, 1)
	s.Parallelism = s.Parallelism.withDefaults()
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
