package main

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/shardbook/shardbook/internal/flags"
	"github.com/shardbook/shardbook/lib/cost"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/recompute"
)

// estimateSettings are the settings of the run to estimate. Each is a flag, and a key of --file.
type estimateSettings struct {
	// Model, or one of the next two fields, or the sizes below describe the model.
	Model     string        `json:"model,omitempty"`
	Config    string        `json:"config,omitempty"`
	Params    flags.Amount  `json:"params,omitempty"`
	Layers    int           `json:"layers,omitempty"`
	D         int           `json:"d,omitempty"`
	Heads     int           `json:"heads,omitempty"`
	KVHeads   int           `json:"kv_heads,omitempty"`
	Hidden    int           `json:"hidden,omitempty"`
	Vocab     int           `json:"vocab,omitempty"`
	Gated     bool          `json:"gated,omitempty"`
	Tied      bool          `json:"tied,omitempty"`
	Norm      gpt.Norm      `json:"norm,omitempty"`
	Positions gpt.Positions `json:"positions,omitempty"`
	NoBias    bool          `json:"no_bias,omitempty"`

	Activation gpt.Activation `json:"activation,omitempty"` // instead of the model's

	Data        int    `json:"data"`
	Tensor      int    `json:"tensor"`
	SeqParallel bool   `json:"seq_parallel,omitempty"`
	Context     int    `json:"context"`
	Pipe        int    `json:"pipe"`
	Schedule    string `json:"schedule"`
	Chunks      int    `json:"chunks"`
	Zero        int    `json:"zero"`

	Seq                int              `json:"seq,omitempty"`
	Batch              int              `json:"batch"`
	Microbatches       int              `json:"microbatches"`
	Precision          string           `json:"precision"`
	Optimizer          string           `json:"optimizer"`
	Recompute          recompute.Policy `json:"recompute"`
	Flash              bool             `json:"flash,omitempty"`
	Dropout            float64          `json:"dropout,omitempty"`
	Clip               float64          `json:"clip,omitempty"`
	OffloadOptimizer   bool             `json:"offload_optimizer,omitempty"`
	OffloadActivations bool             `json:"offload_activations,omitempty"`
	Bucket             flags.Amount     `json:"bucket"`
	Overhead           flags.Amount     `json:"overhead"`
	Engine             string           `json:"engine"`

	Device string       `json:"device,omitempty"`
	Memory flags.Amount `json:"memory,omitempty"`
	Tokens flags.Amount `json:"tokens,omitempty"`
}

// newEstimateSettings returns the defaults, without a model.
func newEstimateSettings() *estimateSettings {
	return &estimateSettings{Data: 1, Tensor: 1, Context: 1, Pipe: 1, Schedule: string(memest.OneFOneB), Chunks: 1,
		Batch: 1, Microbatches: 1,
		Precision: "bf16", Optimizer: "adamw", Recompute: "none", Bucket: "25MB", Overhead: "0", Engine: "planned"}
}

// flags adds the flags of the run.
func (s *estimateSettings) flags(f *pflag.FlagSet) {
	f.StringVar(&s.Model, "model", s.Model, `a published model, such as "Llama 3 8B"`)
	f.StringVar(&s.Config, "config", s.Config, "a Hugging Face config.json; or a file of YAML or TOML with settings")
	f.StringVar((*string)(&s.Params), "params", string(s.Params),
		"number of parameters, if nothing else is known, as 7.5e9 or 7.5B")
	f.IntVar(&s.Layers, "layers", s.Layers, "Transformer blocks")
	f.IntVar(&s.D, "d", s.D, "model width")
	f.IntVar(&s.Heads, "heads", s.Heads, "attention heads")
	f.IntVar(&s.KVHeads, "kv-heads", s.KVHeads, "key/value heads (default as --heads)")
	f.IntVar(&s.Hidden, "hidden", s.Hidden, "MLP width (default 4 times --d)")
	f.IntVar(&s.Vocab, "vocab", s.Vocab, "vocabulary size; shardbook train has 256")
	f.BoolVar(&s.Gated, "gated", s.Gated, "gated MLP (SwiGLU)")
	f.BoolVar(&s.Tied, "tied", s.Tied, "tie the output head to the token embedding")
	f.StringVar((*string)(&s.Norm), "norm", string(s.Norm), fmt.Sprintf("%s (default) or %s", gpt.LayerNorm,
		gpt.RMSNorm))
	f.StringVar((*string)(&s.Positions), "positions", string(s.Positions), fmt.Sprintf("%s (default) or %s",
		gpt.Learned, gpt.Rotary))
	f.BoolVar(&s.NoBias, "no-bias", s.NoBias, "no biases in the blocks")
	f.StringVar((*string)(&s.Activation), "activation", string(s.Activation),
		fmt.Sprintf("MLP activation: %s (GELU, or SiLU if gated) or %s (default the model's own)", gpt.Usual, gpt.ReLU))
	f.Float64Var(&s.Dropout, "dropout", s.Dropout, "dropout rate")
	f.BoolVar(&s.Flash, "flash", s.Flash, "FlashAttention: attention without storing its scores")
	flags.Choices(f, "norm", gpt.LayerNorm, gpt.RMSNorm)
	flags.Choices(f, "positions", gpt.Learned, gpt.Rotary)
	flags.Choices(f, "activation", gpt.Usual, gpt.ReLU)
	var models []string
	for _, m := range cost.Presets() {
		models = append(models, m.Name)
	}
	flags.Choices(f, "model", models...)
	flags.Group(f, "model")

	f.IntVar(&s.Seq, "seq", s.Seq, "sequence length in tokens (default the longest that the model takes)")
	f.IntVar(&s.Batch, "batch", s.Batch, "sequences of a micro-batch on each data-parallel device")
	f.StringVar((*string)(&s.Tokens), "tokens", string(s.Tokens),
		"tokens to train on, as 1e12 or 1T: print how long that takes")
	flags.Group(f, "data")

	f.StringVar(&s.Optimizer, "optimizer", s.Optimizer, strings.Join(optim.Names(), "|"))
	f.Float64Var(&s.Clip, "clip", s.Clip, "clip gradients to this global norm (default no clipping)")
	flags.Choices(f, "optimizer", optim.Names()...)
	flags.Group(f, "optimizer")
	f.StringVar(&s.Precision, "precision", s.Precision, "number format: "+strings.Join(precision.Names(), "|"))
	flags.Choices(f, "precision", precision.Names()...)
	flags.Group(f, "precision")

	f.StringVar((*string)(&s.Recompute), "recompute", string(s.Recompute),
		"none|auto|block|sublayers|every:K|sqrt|selective|ops:A,B")
	f.BoolVar(&s.OffloadOptimizer, "offload-optimizer", s.OffloadOptimizer,
		"optimizer states and master copy in host memory")
	f.BoolVar(&s.OffloadActivations, "offload-activations", s.OffloadActivations, "activations in host memory")
	f.StringVar((*string)(&s.Bucket), "bucket", string(s.Bucket), "bytes of the buffer in which gradients are sent")
	f.StringVar((*string)(&s.Overhead), "overhead", string(s.Overhead),
		"bytes that the framework takes for itself on each device")
	f.StringVar(&s.Engine, "engine", s.Engine, "memory planned as in papers, or compiled as by XLA on a CPU")
	f.StringVar(&s.Device, "device", s.Device, `print whether it fits a device, such as "H100 SXM"`)
	f.StringVar((*string)(&s.Memory), "memory", string(s.Memory), "print whether it fits a memory, as 80GB or 80GiB")
	flags.Choices(f, "recompute", "none", "auto", "block", "sublayers", "every:2", "sqrt", "selective")
	flags.Choices(f, "engine", "planned", "compiled")
	var devices []string
	for _, h := range cost.Accelerators() {
		devices = append(devices, h.Name)
	}
	flags.Choices(f, "device", devices...)
	flags.Group(f, "memory")

	f.IntVar(&s.Data, "data", s.Data, "data-parallel devices, each with sequences of its own")
	f.IntVar(&s.Tensor, "tensor", s.Tensor, "tensor-parallel devices")
	f.BoolVar(&s.SeqParallel, "seq-parallel", s.SeqParallel,
		"with --tensor, shard activations between layers by token (Megatron)")
	f.IntVar(&s.Context, "context", s.Context, "context-parallel devices, as --seq-parallel of shardbook train")
	f.IntVar(&s.Zero, "zero", s.Zero, "ZeRO stage: 1 shards optimizer states, 2 also gradients, 3 also parameters")
	flags.Choices(f, "zero", "0", "1", "2", "3")
	flags.Pairs(f, "layout", `several layout and pipeline flags in one, as "pipe=2,data=2,tensor=2,zero=1"`, "layout",
		"pipeline")
	flags.Group(f, "layout")
	f.IntVar(&s.Pipe, "pipe", s.Pipe, "pipeline stages")
	f.StringVar(&s.Schedule, "schedule", s.Schedule, "schedule: "+flags.List(memest.Schedules(), "|"))
	f.IntVar(&s.Chunks, "chunks", s.Chunks, "stages of each device of an interleaved pipeline")
	f.IntVar(&s.Microbatches, "microbatches", s.Microbatches, "micro-batches per step on each data-parallel device")
	flags.Choices(f, "schedule", memest.Schedules()...)
	flags.Group(f, "pipeline")
}

// estimateRequest is the settings and their flags.
type estimateRequest struct {
	estimateSettings
	given *pflag.FlagSet
}

// isSet reports whether a flag has another value than its default.
func (r *estimateRequest) isSet(flag string) bool {
	f := r.given.Lookup(flag)
	return f.Value.String() != f.DefValue
}
