package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shardbook/shardbook/internal/flags"
	"github.com/shardbook/shardbook/internal/job"
	"github.com/shardbook/shardbook/internal/userfile"
	"github.com/shardbook/shardbook/lib/cost"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/recompute"
)

func estimateCommand() *cobra.Command {
	var list, printConfig, asJSON bool
	var file string
	units := "GB"
	r := &estimateRequest{precision: "bf16", optimizer: "adamw", bucket: "25MB", overhead: "0", engine: "planned",
		sizes: gpt.Config{Experts: job.Experts()}, setup: memest.Setup{Batch: 1, Microbatches: 1, Recompute: "none",
			Parallelism: memest.Parallelism{Data: 1, Tensor: 1, Context: 1, Expert: 1, Pipeline: 1,
				Schedule: memest.OneFOneB, Chunks: 1}}}
	cmd := &cobra.Command{
		Use:   "estimate",
		Short: "Estimate the memory of a training run, with no device",
		Long: `Estimate the memory of a training run on each device, line by line, before any device is touched.

The model is a published one (--model), a Hugging Face config.json (--config), sizes as in shardbook train
(--layers, --d, --heads, --vocab, --seq; with experts also --experts and --experts-per-token), or only a number
of parameters (--params), of which the states alone are known.

All settings may also come from a file of YAML or TOML (--config), or of JSON (--file), by the names of the
flags, in which _ may stand for -: {"model": "Llama 3 8B", "seq_parallel": true}. Flags that are given win.`,
		Example: "  shardbook estimate --params 7.5e9 --data 64 --zero 1\n" +
			"  shardbook estimate --model \"Llama 3 8B\" --data 8 --zero 3 --flash --seq 4096 --device \"H100 SXM\"\n" +
			"  shardbook estimate --config config.json --tensor 8 --seq-parallel --pipe 4 --microbatches 16 " +
			"--detail\n  shardbook estimate --file run.json --json",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			signals.allow(0) // it only computes
			switch {
			case cmd.Flags().Changed("devices"):
				return errors.New("--devices is for commands that open XLA devices: give the layout instead, " +
					"as in --data 8 --tensor 4")
			case list:
				return listModels(cmd.OutOrStdout(), asJSON)
			case printConfig:
				return flags.Print(cmd.OutOrStdout(), cmd.Flags())
			}
			unit, err := parseUnits(units)
			if err != nil {
				return err
			}
			r.flags = cmd.Flags()
			e, err := r.estimate()
			if err != nil {
				return flags.Located(cmd.Flags(), err)
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), e)
			}
			_, err = io.WriteString(cmd.OutOrStdout(), e.text(unit))
			return err
		},
	}
	f := cmd.Flags()
	add := flags.Adder(f)
	r.addFlags(f)
	add(&file, "file", "read settings from a file of JSON, YAML or TOML")
	add(&printConfig, "print-config", "print the settings as a file for --config, in YAML, and do nothing more")
	add(&list, "list-models", "list the published models, and do nothing more")
	flags.Settings(f, "config", "yaml", "yml", "toml")
	flags.Settings(f, "file")
	flags.NotInFiles(f, "print-config", "list-models")
	flags.Group(f, job.GroupRun)
	add(&asJSON, "json", "print one JSON object, in bytes, and nothing else")
	add(&r.detail, "detail", "print every line with its formula, values and source")
	add(&r.compare, "compare", "print what published conventions count beside ours")
	add(&r.advise, "advise", "print what would save memory even where the run fits")
	add(&units, "units", "units of what is printed: GB, which are 10⁹ bytes, or GiB, 2³⁰")
	flags.Choices(f, "units", "GB", "GiB")
	flags.Group(f, job.GroupOutput)
	flags.Complete(cmd)
	return cmd
}

// listModels prints the names for --model.
func listModels(out io.Writer, asJSON bool) error {
	type listed struct {
		cost.Model
		Params int64 `json:"params"`
		Active int64 `json:"active"` // parameters that a token passes through
	}
	var models []listed
	for _, m := range cost.Presets() {
		models = append(models, listed{m, m.Params().Total(), m.Params().Active()})
	}
	if asJSON {
		return writeJSON(out, map[string]any{"models": models})
	}
	for _, m := range models {
		experts := ""
		if m.Experts > 0 {
			experts = ", MoE"
		}
		if _, err := fmt.Fprintf(out, "%-20s %16s parameters, %3d blocks of width %d%s\n", m.Name, grouped(m.Params),
			m.Layers, m.Width, experts); err != nil {
			return err
		}
	}
	return nil
}

func writeJSON(out io.Writer, v any) error {
	e := json.NewEncoder(out)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// estimateRequest has the flags of estimate.
type estimateRequest struct {
	flags *pflag.FlagSet
	setup memest.Setup // as far as flags set it directly; see complete

	model, config string
	params        flags.Amount
	sizes         gpt.Config // also has --flash and --dropout

	precision, optimizer, engine, device string
	clip                                 float64
	bucket, overhead, memory, tokens     flags.Amount
	detail, compare, advise              bool // what to print
}

// addFlags adds the flags of the run.
func (r *estimateRequest) addFlags(f *pflag.FlagSet) {
	add, s, p := flags.Adder(f), &r.setup, &r.setup.Parallelism
	add(&r.model, "model", `a published model, such as "Llama 3 8B"`)
	add(&r.config, "config", "a Hugging Face config.json; or a file of YAML or TOML with settings")
	add(&r.params, "params", "number of parameters, if nothing else is known, as 7.5e9 or 7.5B")
	add(&r.sizes.Vocab, "vocab", "vocabulary size; shardbook train has 256")
	add(&r.sizes.Flash, "flash", "FlashAttention: attention block by block, without storing its scores")
	job.ModelFlags(f, &r.sizes)
	flags.Group(f, job.GroupModel)
	var models []string
	for _, m := range cost.Presets() {
		models = append(models, m.Name)
	}
	flags.Choices(f, "model", models...)

	add(&s.Batch, "batch", "sequences of a micro-batch on each data-parallel device")
	add(&r.tokens, "tokens", "tokens to train on, as 1e12 or 1T: print how long that takes")
	flags.Group(f, job.GroupData)
	job.OptimizerFlags(f, &r.optimizer, &r.clip)
	flags.Group(f, job.GroupOptimizer)
	job.PrecisionFlag(f, &r.precision)
	flags.Group(f, job.GroupPrecision)

	add(&s.Recompute, "recompute", "none|auto|block|sublayers|every:K|sqrt|selective|ops:A,B")
	add(&s.OffloadOptimizer, "offload-optimizer", "optimizer states and master copy in host memory")
	add(&s.OffloadActivations, "offload-activations", "activations in host memory")
	add(&r.bucket, "bucket", "bytes of the buffer in which gradients are sent")
	add(&r.overhead, "overhead", "bytes that the framework takes for itself on each device")
	add(&r.engine, "engine", "memory planned as in papers, or compiled as by XLA on a CPU")
	add(&r.device, "device", `print whether it fits a device, such as "H100 SXM"`)
	add(&r.memory, "memory", "print whether it fits a memory, as 80GB or 80GiB")
	flags.Choices(f, "recompute", "none", "auto", "block", "sublayers", "every:2", "sqrt", "selective")
	flags.Choices(f, "engine", "planned", "compiled")
	var devices []string
	for _, h := range cost.Accelerators() {
		devices = append(devices, h.Name)
	}
	flags.Choices(f, "device", devices...)
	flags.Group(f, job.GroupMemory)

	add(&p.Data, "data", "data-parallel devices, each with sequences of its own")
	add(&p.Tensor, "tensor", "tensor-parallel devices")
	add(&p.Seq, "seq-parallel", "with --tensor, shard activations between layers by token (Megatron)")
	add(&p.Context, "context", "context-parallel devices, as --seq-parallel of shardbook train")
	add(&p.Expert, "expert-parallel", "devices of --data that split the experts; it divides their number")
	add(&p.ZeRO, "zero", "ZeRO stage: 1 shards optimizer states, 2 also gradients, 3 also parameters")
	flags.Choices(f, "zero", "0", "1", "2", "3")
	flags.Pairs(f, "layout", `several layout and pipeline flags in one, as "pipe=2,data=2,tensor=2,zero=1"`,
		job.GroupLayout, job.GroupPipeline)
	flags.Group(f, job.GroupLayout)
	add(&p.Pipeline, "pipe", "pipeline stages")
	add(&p.Schedule, "schedule", "schedule: "+flags.List(memest.Schedules(), "|"))
	add(&p.Chunks, "chunks", "stages of each device of an interleaved pipeline")
	add(&s.Microbatches, "microbatches", "micro-batches per step on each data-parallel device")
	flags.Choices(f, "schedule", memest.Schedules()...)
	flags.Group(f, job.GroupPipeline)
	flags.Least(f, "1", "data", "tensor", "context", "expert-parallel", "pipe", "chunks", "batch",
		"microbatches")
}

// ways are the flags that describe the model: one of the first three, or sizes.
var ways = [][]string{{"model"}, {"config"}, {"params"}, {"layers", "d", "heads", "kv-heads", "hidden", "vocab",
	"gated", "tied", "norm", "positions", "no-bias", "experts", "experts-per-token", "expert-hidden", "shared-experts", "dense-layers",
	"router", "capacity", "balance", "z-loss", "bias-rate", "qk-norm"}}

// needModel are the flags that have no effect if only the number of parameters is known.
var needModel = []string{"activation", "tensor", "seq-parallel", "context", "expert-parallel", "pipe", "schedule",
	"chunks", "seq", "batch", "microbatches", "recompute", "flash", "dropout", "clip", "offload-activations", "bucket",
	"overhead", "engine"}

// firstSet returns the first of some flags that has another value than its default, or "".
func (r *estimateRequest) firstSet(names []string) string {
	for _, name := range names {
		if f := r.flags.Lookup(name); f.Value.String() != f.DefValue {
			return name
		}
	}
	return ""
}

// theModel returns the model and its number of parameters; the model is nil if only that number is known.
func (r *estimateRequest) theModel() (*cost.Model, int64, error) {
	var given []string
	for _, way := range ways {
		if flag := r.firstSet(way); flag != "" {
			given = append(given, "--"+flag)
		}
	}
	switch {
	case len(given) == 0:
		return nil, 0, errors.New("no model is given: give --model NAME (--list-models lists them), --config FILE, " +
			"--params N, or --layers, --d, --heads, --vocab and --seq")
	case len(given) > 1:
		return nil, 0, fmt.Errorf("%s and %s both describe the model: leave one of them out", given[0], given[1])
	case r.params != "":
		if flag := r.firstSet(needModel); flag != "" {
			return nil, 0, fmt.Errorf("--%s has no effect with --params, which gives no sizes of a model: "+
				"give --model, --config or --layers instead, or leave out --%[1]s", flag)
		}
		n, err := r.params.Count("params")
		return nil, n, err
	}
	m, err := r.sized()
	if err != nil {
		return nil, 0, err
	}
	switch r.sizes.Activation {
	case "":
	case gpt.ReLU:
		m.Activation = "relu"
	case gpt.Usual:
		m.Activation = "gelu"
		if m.Gated {
			m.Activation = "silu"
		}
	default:
		return nil, 0, fmt.Errorf("--activation=%s: want %s or %s", r.sizes.Activation, gpt.Usual, gpt.ReLU)
	}
	return &m, m.Params().Total(), m.Validate()
}

// sized returns the model of --model, --config or the sizes.
func (r *estimateRequest) sized() (m cost.Model, err error) {
	switch {
	case r.model != "":
		if m, err = cost.Preset(r.model); err != nil {
			err = fmt.Errorf("--model: %w; --list-models lists all", err)
		}
		return m, err
	case r.config != "":
		m, err = readConfig(r.config)
		return m, inFlag("config", err)
	}
	c := r.sizes
	c.Activation, c.Flash, c.Dropout = "", false, 0 // which the setup has
	if err = flags.Check(r.flags); err != nil {
		return m, err
	}
	job.CompleteModel(&c)
	if err = c.Validate(); err != nil {
		return m, inFlag("layers, --d, --heads, --vocab, --seq", job.InFlags(err))
	}
	return cost.FromGPT(c), nil
}

// maxConfig is the maximum size of a config.json in bytes.
const maxConfig = 1 << 20

func readConfig(path string) (cost.Model, error) {
	file, err := userfile.Open(path, maxConfig)
	if err != nil {
		return cost.Model{}, err
	}
	defer file.Close()
	m, err := cost.ReadConfig(file)
	if err != nil {
		return m, fmt.Errorf("%s: %w", path, err)
	}
	m.Name = path
	return m, nil
}

// complete sets what flags do not set directly in the setup.
func (r *estimateRequest) complete(m *cost.Model) (err error) {
	s, c := &r.setup, r.sizes
	s.Seq, s.Flash, s.Dropout, s.Clip = c.Seq, c.Flash, c.Dropout, r.clip > 0
	if m != nil {
		s.Model, s.Seq = *m, cmp.Or(s.Seq, m.Context)
	}
	if s.Precision, err = precision.ParsePolicy(r.precision); err != nil {
		return inFlag("precision", err)
	}
	if s.Optimizer, err = optim.Parse(r.optimizer, 1e-3); err != nil { // the learning rate changes no memory
		return inFlag("optimizer", err)
	}
	var ok bool
	if s.Method, ok = map[string]memest.Method{"planned": memest.Planned, "compiled": memest.Compiled}[r.engine]; !ok {
		return fmt.Errorf("--engine=%s: want planned or compiled", r.engine)
	}
	if !(r.clip >= 0) || math.IsInf(r.clip, 1) {
		return fmt.Errorf("--clip=%g: want a number of at least 0", r.clip)
	}
	if s.Bucket, err = r.bucket.Bytes("bucket", 1); err != nil {
		return err
	}
	s.Framework, err = r.overhead.Bytes("overhead", 0)
	return err
}

// limit returns the memory of a device in bytes, 0 if no flag gives it, and the device's name, if a flag gives one.
func (r *estimateRequest) limit() (device string, budget int64, err error) {
	switch {
	case r.device != "" && r.memory != "":
		return "", 0, errors.New("--device and --memory both set the memory of a device: leave one of them out")
	case r.device != "":
		h, err := cost.Accelerator(r.device)
		return h.Name, h.MemoryBytes, inFlag("device", err)
	case r.memory != "":
		budget, err = r.memory.Bytes("memory", 1)
	}
	return "", budget, err
}

// chooseRecompute sets a policy with which the run fits the budget, or else full recomputation. The latter also for an
// invalid run, for which the estimate returns the error.
func (r *estimateRequest) chooseRecompute(budget int64) error {
	if budget == 0 {
		return errors.New("--recompute=auto needs the memory of a device: give --device or --memory")
	}
	r.setup.Recompute = recompute.None
	policy, err := memest.Recompute(r.setup, budget)
	if r.setup.Recompute = recompute.Block; err == nil {
		r.setup.Recompute = cmp.Or(policy, "none")
	}
	return nil
}
