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
	GroupModel     = "model"
	GroupData      = "data"
	GroupOptimizer = "optimizer"
	GroupPrecision = "precision"
	GroupMemory    = "memory"
	GroupLayout    = "layout"
	GroupPipeline  = "pipeline"
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
	flags.Pairs(f, "layout", `several layout and pipeline flags in one: "pipe=2,data=2,tensor=2,zero=1"`, GroupLayout,
		GroupPipeline)
	flags.Group(f, GroupLayout)
	j.run(f)
}

const flashFlag = "flash"

// ModelFlags adds the flags of a model's architecture.
func ModelFlags(f *pflag.FlagSet, m *gpt.Config) {
	add := flags.Adder(f)
	add(&m.Layers, "layers", "Transformer blocks")
	add(&m.Width, "d", "model width")
	add(&m.Heads, "heads", "attention heads")
	add(&m.Seq, "seq", "sequence length in tokens")
	add(&m.KVHeads, "kv-heads", "key/value heads (default as --heads)")
	add(&m.Hidden, "hidden", "MLP width (default 4 times --d)")
	add(&m.Gated, "gated", "gated MLP (SwiGLU)")
	add(&m.Activation, "activation",
		fmt.Sprintf("MLP activation: %s (GELU, or SiLU if gated) or %s", gpt.Usual, gpt.ReLU))
	add(&m.Norm, "norm", fmt.Sprintf("normalization: %s|%s", gpt.LayerNorm, gpt.RMSNorm))
	add(&m.Positions, "positions", fmt.Sprintf("position embeddings: %s|%s", gpt.Learned, gpt.Rotary))
	add(&m.Tied, "tied", "tie the output head to the token embedding")
	add(&m.NoBias, "no-bias", "no biases in the blocks")
	add(&m.Dropout, "dropout", "dropout rate")
	expertFlags(f, m)
	flags.Choices(f, "activation", gpt.Usual, gpt.ReLU)
	flags.Choices(f, "norm", gpt.LayerNorm, gpt.RMSNorm)
	flags.Choices(f, "positions", gpt.Learned, gpt.Rotary)
	flags.Group(f, GroupModel)
}

// OptimizerFlags adds the flags that name the optimizer and clip gradients.
func OptimizerFlags(f *pflag.FlagSet, name *string, clip *float64) {
	add := flags.Adder(f)
	add(name, "optimizer", strings.Join(optim.Names(), "|"))
	add(clip, "clip", "clip gradients to this global norm (default no clipping)")
	flags.Choices(f, "optimizer", optim.Names()...)
}

// PrecisionFlag adds the flag that names the number format.
func PrecisionFlag(f *pflag.FlagSet, name *string) {
	flags.Adder(f)(name, "precision", "number format: "+strings.Join(precision.Names(), "|"))
	flags.Choices(f, "precision", precision.Names()...)
}

// flags adds the flags for what a run learns, on any devices.
func (j *Job) flags(f *pflag.FlagSet) {
	m, add := &j.Model, flags.Adder(f)
	flags.Choice(f, &j.Flash, flashFlag, []string{FlashAuto, FlashOn, FlashOff},
		"FlashAttention: "+FlashAuto+" (where there is a kernel)|"+FlashOn+"|"+FlashOff)
	f.Lookup(flashFlag).NoOptDefVal = FlashOn
	ModelFlags(f, m)

	add(&j.Text, "text", "text: go (its standard library), reference, a file or a folder")
	add(&j.TextBytes, "text-bytes", "number of bytes to read from the beginning of the text (default all)")
	add(&j.Batch, "batch", "sequences per step, on all devices together")
	add(&j.Seed, "seed", "seed of the data order, of dropout and of stochastic rounding")
	flags.Least(f, "1", "batch")
	flags.Least(f, "0", "text-bytes")
	flags.Group(f, GroupData)

	OptimizerFlags(f, &j.Optimizer, &j.Clip)
	add(&j.LR, "lr", "learning rate")
	add(&j.Schedule, rateFlag, "learning rate after the warm-up: "+strings.Join(rates, "|"))
	add(&j.Warmup, "warmup", "steps in which the learning rate grows from 0")
	flags.Choices(f, rateFlag, rates...)
	flags.Least(f, "0", "warmup")
	flags.Group(f, GroupOptimizer)

	PrecisionFlag(f, &j.Precision)
	add(&j.Stochastic, "stochastic-rounding", "round updates stochastically where there is no master copy")
	add(&j.LossScale, "loss-scale", "loss scale: none, dynamic or a number (default dynamic for fp16, else none)")
	flags.Choices(f, "loss-scale", "none", "dynamic")
	flags.Group(f, GroupPrecision)

	add(&m.Recompute, "recompute", "activation checkpointing: none|block|sublayers|every:K|sqrt|selective|ops:A,B")
	add(&m.Compress, "compress", "save activations as dense|fp16|bf16|fp10|e4m3|e5m2|int8[:GROUP]|csr:FRACTION")
	add(&m.CompressReLU, "compress-relu", "codec for outputs of ReLU, as csr:FRACTION (default that of --compress)")
	flags.Choices(f, "recompute", "none", "block", "sublayers", "every:2", "sqrt", "selective")
	flags.Group(f, GroupMemory)
}

// run adds the flags for the length, the seed and the outputs of a run.
func (j *Job) run(f *pflag.FlagSet) {
	add := flags.Adder(f)
	add(&j.Steps, "steps", "training steps, counted from the first")
	add(&j.Reference, "reference",
		"benchmark run: fixed text, weights, optimizer; by default 4 layers of width 256")
	flags.Least(f, "1", "steps")
	flags.Group(f, GroupRun)
}

// flags adds the flags of parallelism.
func (p *Parallel) flags(f *pflag.FlagSet) {
	add := flags.Adder(f)
	add(&p.Data, "data", "data-parallel devices, each with its part of every batch")
	flags.Choice(f, &p.Sync, "sync", syncWays(), "gradient exchange: "+flags.List(syncWays(), "|"))
	add(&p.Accumulate, "accumulate", "gradient accumulation: micro-batches per step, without --pipe")
	add(&p.BucketBytes, "bucket-bytes",
		fmt.Sprintf("largest bucket of gradients (default %gMB)", ddp.DefaultBucketBytes/1e6))
	add(&p.Every, "every", "local SGD: steps between averages of the parameters")
	add(&p.Servers, "servers", "parameter servers of --sync ps and async (default one for each rank)")
	add(&p.Compress, "compress-gradients",
		"compress gradients that are sent: bf16|fp8|topk:FRACTION|powersgd:RANK")
	add(&p.Replicas, "replicas", "copies of the layout, between which ranks send gradients (default 1)")
	add(&p.Zero, "zero", "ZeRO stage: 1 shards optimizer states, 2 also gradients, 3 also parameters")
	add(&p.Prefetch, "prefetch", "gather parameters this many blocks before their use, with --zero 3")
	add(&p.Shards, "shards", "hybrid sharding: devices per sharded copy of the state (default all)")
	add(&p.Offload, "offload-optimizer", "optimizer states and updates in host memory (ZeRO-Offload)")
	add(&p.Tensor, "tensor", "tensor-parallel devices")
	add(&p.TensorSequence, "tensor-sequence", "with --tensor, shard activations between layers by token (Megatron)")
	add(&p.TensorOverlap, "tensor-overlap", "with --tensor-sequence, send in chunks while matmuls run")
	add(&p.TensorPartition, "tensor-partition",
		"with --tensor, shard saved block inputs, and recompute the rest (ZeRO-R)")
	add(&p.Expert, "expert-parallel", "--data devices among which the experts are divided: see above")
	add(&p.SeqParallel, "seq-parallel", "sequence-parallel (context-parallel) devices")
	flags.Choice(f, &p.SeqMethod, "seq-method", parallel.SeqMethods(),
		fmt.Sprintf("attention over shards: %s (default ring)", strings.Join(parallel.SeqMethods(), "|")))
	add(&p.SeqUlysses, "seq-ulysses",
		"size of Ulysses groups with --seq-method hybrid (default as many as fit)")
	add(&p.SeqRanks, "seq-ranks", "send keys and values between ranks, and so between hosts")
	flags.Choice(f, &p.Placement, "placement", sequence.Placements(),
		fmt.Sprintf("which tokens a device has: %s (default zigzag)", flags.List(sequence.Placements(), "|")))
	flags.Least(f, "1", "data", "accumulate", "every")
	flags.Least(f, "0", "servers", "replicas", "zero", "prefetch", "shards", "tensor", "seq-parallel", "seq-ulysses",
		"expert-parallel")
	flags.Needs(f, "zero", "prefetch", "shards")
	flags.Needs(f, "tensor", "tensor-sequence", "tensor-partition")
	flags.Needs(f, "tensor-sequence", "tensor-overlap")
	flags.Needs(f, "experts", "expert-parallel")
	flags.Needs(f, "seq-parallel", "seq-method", "seq-ulysses", "seq-ranks", "placement")
	flags.Choices(f, "compress-gradients", "bf16", "fp8", "topk:0.01", "powersgd:4")
	flags.Choices(f, "zero", "0", "1", "2", "3")
	flags.Group(f, GroupLayout)

	add(&p.Pipe, "pipe", "pipeline-parallel ranks, each with some of the blocks; 0 is no pipeline")
	add(&schedule{&p.PipeSchedule, f}, "schedule",
		"pipeline schedule: see above (default 1f1b); or the values of --"+rateFlag)
	add(&p.File, "schedule-file", "read the schedule from a file of CSV, or of this project's text")
	add(&p.Microbatches, "microbatches", "micro-batches per step (default at least twice --pipe)")
	add(&p.Chunks, "chunks", "stages per rank, of interleaved schedules (default 2)")
	add(&p.Cut, "cut", fmt.Sprintf("blocks of each stage: 3,2,1 for example, %s or %s (default %[1]s)", cutEven,
		CutMeasured))
	add(&p.RecomputeStages, "recompute-stages", "save only the inputs of stages, and recompute the rest")
	flags.Least(f, "0", "pipe", "microbatches", "chunks")
	flags.Needs(f, "pipe", "schedule", "microbatches", "chunks", "cut", "recompute-stages")
	flags.Choices(f, "schedule", append(flags.Texts(pipeline.Kinds()), rates...)...)
	flags.Choices(f, "cut", cutEven, CutMeasured)
	flags.File(f, "schedule-file")
	flags.Group(f, GroupPipeline)

	add(&p.DeviceMemory, "device-memory", "refuse a run that needs more memory per device by the estimate, as 80GB")
	flags.Group(f, GroupMemory)
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
