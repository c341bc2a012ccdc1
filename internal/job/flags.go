package job

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/shardbook/shardbook/internal/flags"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/sequence"
)

// The groups of flags.
const (
	groupModel     = "model"
	groupData      = "data"
	groupOptimizer = "optimizer"
	groupPrecision = "precision"
	groupMemory    = "memory"
	groupLayout    = "layout"
	groupPipeline  = "pipeline"
	GroupRun       = "run"
	GroupOutput    = "output"
)

// rateFlag is the learning rate schedule, and rates are its values.
const rateFlag = "lr-schedule"

var rates = []string{"constant", "cosine", "linear"}

// Flags adds the flags that set the job.
func (j *Job) Flags(f *pflag.FlagSet) {
	j.flags(f)
	j.Parallel.flags(f)
	flags.Pairs(f, "layout", `several layout and pipeline flags in one: "pipe=2,data=2,tensor=2,zero=1"`, groupLayout,
		groupPipeline)
	flags.Group(f, groupLayout)
	j.run(f)
}

// flags adds the flags for what a run learns, on any devices.
func (j *Job) flags(f *pflag.FlagSet) {
	m := &j.Model
	f.IntVar(&m.Layers, "layers", m.Layers, "Transformer blocks")
	f.IntVar(&m.Width, "d", m.Width, "model width")
	f.IntVar(&m.Heads, "heads", m.Heads, "attention heads")
	f.IntVar(&m.Seq, "seq", m.Seq, "sequence length in tokens")
	f.IntVar(&m.KVHeads, "kv-heads", m.KVHeads, "key/value heads (default as --heads)")
	f.IntVar(&m.Hidden, "hidden", m.Hidden, "MLP width (default 4 times --d)")
	f.BoolVar(&m.Gated, "gated", m.Gated, "gated MLP (SwiGLU)")
	f.StringVar((*string)(&m.Activation), "activation", string(m.Activation),
		fmt.Sprintf("MLP activation: %s (GELU, or SiLU if gated) or %s", gpt.Usual, gpt.ReLU))
	f.StringVar((*string)(&m.Norm), "norm", string(m.Norm), fmt.Sprintf("normalization: %s|%s", gpt.LayerNorm,
		gpt.RMSNorm))
	f.StringVar((*string)(&m.Positions), "positions", string(m.Positions),
		fmt.Sprintf("position embeddings: %s|%s", gpt.Learned, gpt.Rotary))
	f.BoolVar(&m.Tied, "tied", m.Tied, "tie the output head to the token embedding")
	f.BoolVar(&m.NoBias, "no-bias", m.NoBias, "no biases in the blocks")
	f.Float64Var(&m.Dropout, "dropout", m.Dropout, "dropout rate")
	f.BoolVar(&m.Flash, "flash", m.Flash, "FlashAttention: attention block by block, without storing its scores")
	flags.Choices(f, "activation", gpt.Usual, gpt.ReLU)
	flags.Choices(f, "norm", gpt.LayerNorm, gpt.RMSNorm)
	flags.Choices(f, "positions", gpt.Learned, gpt.Rotary)
	flags.Group(f, groupModel)

	f.StringVar(&j.Text, "text", j.Text, "text: go (its standard library), reference, a file or a folder")
	f.Int64Var(&j.TextBytes, "text-bytes", j.TextBytes, "number of bytes to read from the beginning of the text "+
		"(default all)")
	f.IntVar(&j.Batch, "batch", j.Batch, "sequences per step, on all devices together")
	f.Uint32Var(&j.Seed, "seed", j.Seed, "seed of the data order, of dropout and of stochastic rounding")
	flags.Least(f, "1", "batch")
	flags.Least(f, "0", "text-bytes")
	flags.Group(f, groupData)

	f.StringVar(&j.Optimizer, "optimizer", j.Optimizer, strings.Join(optim.Names(), "|"))
	f.Float64Var(&j.LR, "lr", j.LR, "learning rate")
	f.StringVar(&j.Schedule, rateFlag, j.Schedule, "learning rate after the warm-up: "+strings.Join(rates, "|"))
	f.IntVar(&j.Warmup, "warmup", j.Warmup, "steps in which the learning rate grows from 0")
	f.Float64Var(&j.Clip, "clip", j.Clip, "clip gradients to this global norm (default no clipping)")
	flags.Choices(f, "optimizer", optim.Names()...)
	flags.Choices(f, rateFlag, rates...)
	flags.Least(f, "0", "warmup")
	flags.Group(f, groupOptimizer)

	f.StringVar(&j.Precision, "precision", j.Precision, "number format: "+strings.Join(precision.Names(), "|"))
	f.BoolVar(&j.Stochastic, "stochastic-rounding", j.Stochastic,
		"round updates stochastically where there is no master copy")
	f.StringVar(&j.LossScale, "loss-scale", j.LossScale, "loss scale: none, dynamic or a number (default dynamic for "+
		"fp16, else none)")
	flags.Choices(f, "precision", precision.Names()...)
	flags.Choices(f, "loss-scale", "none", "dynamic")
	flags.Group(f, groupPrecision)

	f.StringVar((*string)(&m.Recompute), "recompute", string(m.Recompute),
		"activation checkpointing: none|block|sublayers|every:K|sqrt|selective|ops:A,B")
	f.StringVar(&m.Compress, "compress", m.Compress,
		"save activations as dense|fp16|bf16|fp10|e4m3|e5m2|int8[:GROUP]|csr:SHARE")
	f.StringVar(&m.CompressReLU, "compress-relu", m.CompressReLU,
		"save outputs of ReLU as csr:SHARE or one of these (default as --compress)")
	flags.Choices(f, "recompute", "none", "block", "sublayers", "every:2", "sqrt", "selective")
	flags.Group(f, groupMemory)

}

// run adds the flags for the length, the seed and the outputs of a run.
func (j *Job) run(f *pflag.FlagSet) {
	f.IntVar(&j.Steps, "steps", j.Steps, "training steps, counted from the first")
	f.BoolVar(&j.Reference, "reference", j.Reference, "benchmark run: fixed text, weights and optimizer, by default 4 "+
		"layers of width 256")
	flags.Least(f, "1", "steps")
	flags.Group(f, GroupRun)
}

// flags adds the flags of parallelism.
func (p *Parallel) flags(f *pflag.FlagSet) {
	f.IntVar(&p.Data, "data", p.Data, "data-parallel devices, each with its part of every batch")
	flags.Choice(f, &p.Sync, "sync", syncWays(), "gradient exchange: "+flags.List(syncWays(), "|"))
	f.IntVar(&p.Accumulate, "accumulate", p.Accumulate, "gradient accumulation: micro-batches per step, without --pipe")
	f.Var(&p.BucketBytes, "bucket-bytes", fmt.Sprintf("largest bucket of gradients (default %gMB)",
		ddp.DefaultBucketBytes/1e6))
	f.IntVar(&p.Every, "every", p.Every, "local SGD: steps between averages of the parameters")
	f.IntVar(&p.Servers, "servers", p.Servers, "parameter servers of --sync ps and async (default one for each rank)")
	f.StringVar(&p.Compress, "compress-gradients", p.Compress, "compress gradients before they are sent: "+
		"bf16|fp8|topk:SHARE|powersgd:RANK")
	f.IntVar(&p.Replicas, "replicas", p.Replicas, "copies of the layout, between which ranks send gradients (default "+
		"1)")
	f.IntVar(&p.Zero, "zero", p.Zero, "ZeRO stage: 1 shards optimizer states, 2 also gradients, 3 also parameters")
	f.IntVar(&p.Prefetch, "prefetch", p.Prefetch, "gather parameters this many blocks before their use, with --zero 3")
	f.IntVar(&p.Shards, "shards", p.Shards, "hybrid sharding: devices per sharded copy of the state (default all)")
	f.BoolVar(&p.Offload, "offload-optimizer", p.Offload, "optimizer states and updates in host memory (ZeRO-Offload)")
	f.IntVar(&p.Tensor, "tensor", p.Tensor, "tensor-parallel devices")
	f.BoolVar(&p.TensorSequence, "tensor-sequence", p.TensorSequence,
		"with --tensor, shard activations between layers by token (Megatron)")
	f.BoolVar(&p.TensorOverlap, "tensor-overlap", p.TensorOverlap,
		"with --tensor-sequence, send in chunks while matmuls run")
	f.BoolVar(&p.TensorPartition, "tensor-partition", p.TensorPartition,
		"with --tensor, shard saved block inputs, and recompute the rest (ZeRO-R)")
	f.IntVar(&p.SeqParallel, "seq-parallel", p.SeqParallel, "sequence-parallel (context-parallel) devices")
	flags.Choice(f, &p.SeqMethod, "seq-method", parallel.SeqMethods(),
		fmt.Sprintf("attention over shards: %s (default ring)", strings.Join(parallel.SeqMethods(), "|")))
	f.IntVar(&p.SeqUlysses, "seq-ulysses", p.SeqUlysses, "size of Ulysses groups with --seq-method hybrid (default as "+
		"many as fit)")
	f.BoolVar(&p.SeqRanks, "seq-ranks", p.SeqRanks, "send keys and values between ranks, and so between hosts")
	flags.Choice(f, &p.Placement, "placement", sequence.Placements(),
		fmt.Sprintf("which tokens a device has: %s (default zigzag)", flags.List(sequence.Placements(), "|")))
	flags.Least(f, "1", "data", "accumulate", "every")
	flags.Least(f, "0", "servers", "replicas", "zero", "prefetch", "shards", "tensor", "seq-parallel", "seq-ulysses")
	flags.Needs(f, "zero", "prefetch", "shards")
	flags.Needs(f, "tensor", "tensor-sequence", "tensor-partition")
	flags.Needs(f, "tensor-sequence", "tensor-overlap")
	flags.Needs(f, "seq-parallel", "seq-method", "seq-ulysses", "seq-ranks", "placement")
	flags.Choices(f, "compress-gradients", "bf16", "fp8", "topk:0.01", "powersgd:4")
	flags.Choices(f, "zero", "0", "1", "2", "3")
	flags.Group(f, groupLayout)

	f.IntVar(&p.Pipe, "pipe", p.Pipe, "pipeline-parallel ranks, each with some of the blocks; 0 is no pipeline")
	f.Var(&schedule{&p.PipeSchedule, f}, "schedule",
		"pipeline schedule: see above (default 1f1b); or the values of --"+rateFlag)
	f.StringVar(&p.File, "schedule-file", p.File, "read the schedule from a file of CSV, or of this project's text")
	f.IntVar(&p.Microbatches, "microbatches", p.Microbatches, "micro-batches per step (default at least twice --pipe)")
	f.IntVar(&p.Chunks, "chunks", p.Chunks, "stages per rank, of interleaved schedules (default 2)")
	f.StringVar(&p.Cut, "cut", p.Cut, fmt.Sprintf("blocks of each stage: 3,2,1 for example, %s or %s (default %[1]s)",
		cutEven, CutMeasured))
	f.BoolVar(&p.RecomputeStages, "recompute-stages", p.RecomputeStages,
		"save only the inputs of stages, and recompute the rest")
	flags.Least(f, "0", "pipe", "microbatches", "chunks")
	flags.Needs(f, "pipe", "schedule", "microbatches", "chunks", "cut", "recompute-stages")
	flags.Choices(f, "schedule", append(flags.Texts(pipeline.Kinds()), rates...)...)
	flags.Choices(f, "cut", cutEven, CutMeasured)
	flags.File(f, "schedule-file")
	flags.Group(f, groupPipeline)

	f.Var(&p.DeviceMemory, "device-memory", "refuse a run that needs more memory per device by the estimate, as 80GB")
	flags.Group(f, groupMemory)
}

// schedule is the value of --schedule, which sets either the pipeline schedule or the learning rate schedule. Their
// values differ, so the value tells which.
type schedule struct {
	kind  *pipeline.Kind
	flags *pflag.FlagSet
}

// Set implements [pflag.Value].
func (s *schedule) Set(value string) error {
	kind := pipeline.Kind(strings.ToLower(value))
	switch {
	case slices.Contains(rates, string(kind)):
		return s.flags.Set(rateFlag, string(kind))
	case kind == "" || slices.Contains(pipeline.Kinds(), kind):
		*s.kind = kind
		return nil
	}
	return fmt.Errorf("want one of %s for a pipeline, or of %s for the learning rate",
		flags.List(pipeline.Kinds(), ", "), strings.Join(rates, ", "))
}

// String implements [pflag.Value]. It returns the pipeline schedule.
func (s *schedule) String() string { return string(*s.kind) }

// Type implements [pflag.Value].
func (s *schedule) Type() string { return "name" }

// all returns a set with all flags of the job.
func (j *Job) all() *pflag.FlagSet {
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	j.Flags(f)
	return f
}

// Values lists the flags of the job and their values.
func (j *Job) Values() (all [][2]string) {
	j.all().VisitAll(func(f *pflag.Flag) { all = append(all, [2]string{"--" + f.Name, f.Value.String()}) })
	return all
}

// Set sets the flags of the job that were given to a command.
func (j *Job) Set(given *pflag.FlagSet) (err error) {
	own := j.all()
	given.Visit(func(f *pflag.Flag) {
		if own.Lookup(f.Name) != nil && err == nil {
			err = own.Set(f.Name, f.Value.String())
		}
	})
	return err
}
