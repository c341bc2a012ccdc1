// Package job has the settings of a training run: their flags, their form in a checkpoint, and the text, training step
// and layout that follow from them. It opens no device.
package job

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/compress"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/recompute"
	"github.com/shardbook/shardbook/lib/train"
)

// Job is everything that decides what a run computes. Checkpoints contain it.
type Job struct {
	Reference  bool       `json:"reference,omitempty"`
	Model      gpt.Config `json:"model"`           // its Flash is what ChooseFlash sets
	Flash      string     `json:"flash,omitempty"` // FlashAuto, FlashOn or FlashOff
	Text       string     `json:"text"`
	TextBytes  int64      `json:"text_bytes,omitempty"`
	TextSHA    string     `json:"text_sha256"` // of the text that was read
	Batch      int        `json:"batch"`
	Steps      int        `json:"steps"` // the schedule's, too
	Seed       uint32     `json:"seed"`
	Precision  string     `json:"precision"`
	Stochastic bool       `json:"stochastic_rounding,omitempty"`
	LossScale  string     `json:"loss_scale"`
	Optimizer  string     `json:"optimizer"`
	LR         float64    `json:"lr"`
	Schedule   string     `json:"schedule"`
	Warmup     int        `json:"warmup,omitempty"`
	Clip       float64    `json:"clip,omitempty"`
	Parallel   Parallel   `json:"parallel"`
}

// The values of Job.Flash.
const (
	FlashAuto = "auto" // where it is allowed and a kernel
	FlashOn   = "on"
	FlashOff  = "off"
)

// New returns the job of a command without flags: a model that is small enough to watch it learn.
func New() *Job {
	return &Job{Model: gpt.Config{Layers: 4, Width: 128, Heads: 4, Seq: 128, Vocab: 256,
		Norm: gpt.LayerNorm, Positions: gpt.Learned, Experts: Experts()}, Flash: FlashAuto,
		Text: "go", Batch: 16, Steps: 100, Precision: "fp32", Optimizer: "adamw", LR: 1e-3, Schedule: "constant", Parallel: OneDevice()}
}

// referenceFixes are the flags that a reference run sets itself.
var referenceFixes = []string{"text", "text-bytes", "seed", "precision", "loss-scale", "optimizer", "lr", rateFlag,
	"warmup",
	"clip", "kv-heads", "hidden", "gated", "norm", "positions", "tied", "no-bias", "dropout", "stochastic-rounding",
	"activation", "qk-norm", "capacity", "balance", "z-loss", "bias-rate",
	"compress", "compress-relu"}

// Complete normalizes settings, and sets those of a reference run, with the reference model's size unless flags give
// another. It is an error if a flag was given that the reference run fixes.
func (j *Job) Complete(given func(flag string) bool) error {
	defer j.normalize()
	if !j.Reference {
		return nil
	}
	for _, flag := range referenceFixes {
		if given(flag) {
			return fmt.Errorf("--%s and --reference: the reference run has its own; leave one of them out", flag)
		}
	}
	reference := gpt.ReferenceConfig()
	for flag, size := range map[string]struct {
		of *int
		is int
	}{
		"layers": {&j.Model.Layers, reference.Layers},
		"d":      {&j.Model.Width, reference.Width},
		"heads":  {&j.Model.Heads, reference.Heads},
		"seq":    {&j.Model.Seq, reference.Seq},
		"batch":  {&j.Batch, 16},
	} {
		if !given(flag) {
			*size.of = size.is
		}
	}
	j.Text, j.LR = "reference", 3e-4
	j.Model.Experts.Balance, j.Model.Experts.BiasRate = 0, 0
	return nil
}

// normalize replaces aliases by one name, so that checkpoints can be compared, and sets defaults that depend on other
// settings. It does not change invalid names.
func (j *Job) normalize() {
	j.Parallel.normalize()
	CompleteModel(&j.Model)
	if j.Flash == "" { // of a checkpoint that is older than the choice
		j.Flash = FlashOff
		if j.Model.Flash {
			j.Flash = FlashOn
		}
	}
	if j.Model.Recompute == "none" {
		j.Model.Recompute = recompute.None
	}
	if j.Model.Activation == gpt.Usual {
		j.Model.Activation = ""
	}
	for _, name := range []*string{&j.Model.Compress, &j.Model.CompressReLU} {
		if codec, err := compress.Parse(*name); err == nil {
			*name = codec.Name()
		}
	}
}

// ChooseFlash sets whether the model computes attention by FlashAttention: as --flash says, or where nothing excludes
// it and it is a kernel: on CPUs, and on CUDA where cuDNN has one. Where the compiler shards the program it would have
// to shard the loops over blocks.
func (j *Job) ChooseFlash(onCUDA bool) {
	policy, err := precision.ParsePolicy(j.Precision)
	allowed := err == nil && policy.Matmul == (precision.Matmul{}) && j.Model.Dropout == 0 && j.Parallel.Sync != Auto
	width := j.Model.Width / max(1, j.Model.Heads)
	if onCUDA && (!policy.Compute.IsHalfPrecision() || width%8 != 0 || width > 128) {
		allowed = false
	}
	j.Model.Flash = j.Flash == FlashOn || j.Flash == FlashAuto && allowed
}

// Remedy returns what to do about NaN gradients: give a codec more room, if it may have too little, else otherwise.
func (j *Job) Remedy(otherwise string) string {
	for _, c := range [][2]string{{"compress-relu", j.Model.CompressReLU}, {"compress", j.Model.Compress}} {
		if strings.HasPrefix(c[1], "csr:") && c[1] != "csr:1" {
			return fmt.Sprintf("--%s=%s may have too little room, which makes all values NaN: raise its capacity, to "+
				"1 at most", c[0], c[1])
		}
	}
	return otherwise
}

// Corpus reads the text, and sets TextSHA.
func (j *Job) Corpus() (c gpt.Corpus, err error) {
	var limit []gpt.Option
	switch {
	case j.TextBytes > 0 && j.Text == "reference":
		return c, fmt.Errorf("--text-bytes=%d: the reference text is always read to its end; leave the flag out",
			j.TextBytes)
	case j.TextBytes > 0:
		limit = append(limit, gpt.Limit(j.TextBytes))
	}
	switch j.Text {
	case "reference":
		c = gpt.Reference()
	case "go":
		c, err = gpt.GoSource(limit...)
	default:
		c, err = gpt.ReadCorpus(j.Text, limit...)
	}
	c.Seed = uint64(j.Seed)
	j.TextSHA = fmt.Sprintf("%x", sha256.Sum256(c.Text))
	return c, err
}

// Recipe returns the training step of the job.
func (j *Job) Recipe() (train.Recipe, error) {
	policy, err := precision.ParsePolicy(j.Precision)
	if err != nil {
		return train.Recipe{}, fmt.Errorf("--precision: %w", err)
	}
	if policy.Scaling, err = j.scaling(policy); err != nil {
		return train.Recipe{}, err
	}
	policy.StochasticUpdate = j.Stochastic
	optimizer, err := optim.Parse(j.Optimizer, j.LR)
	if err != nil {
		return train.Recipe{}, fmt.Errorf("--optimizer, --lr: %w", err)
	}
	schedule, err := j.Rate()
	if err != nil {
		return train.Recipe{}, err
	}
	if j.varies() {
		optimizer = optim.Scheduled(optimizer, schedule)
	}
	model := j.Model
	model.Matmul = policy.Matmul
	r := train.Recipe{Model: j.Parallel.model(model), Optimizer: optimizer, Precision: policy, Clip: j.Clip,
		Seed: j.Seed}
	return r, InFlags(r.Validate())
}

// varies reports whether the learning rate changes between steps.
func (j *Job) varies() bool { return j.Schedule != "constant" || j.Warmup > 0 }

// Rate returns the learning rate schedule, a factor for --lr.
func (j *Job) Rate() (s optim.Schedule, err error) {
	rest := max(1, j.Steps-j.Warmup)
	switch j.Schedule {
	case "constant":
		s = optim.Constant(1)
	case "cosine":
		s = optim.Cosine{Steps: rest, Floor: 0.1}
	case "linear":
		s = optim.Linear{Steps: rest}
	default:
		return nil, fmt.Errorf("--%s=%s: want one of %q", rateFlag, j.Schedule, rates)
	}
	if j.Warmup > 0 {
		s = optim.Warmup{Steps: j.Warmup, Then: s}
	}
	return s, nil
}

// scaling returns the loss scaling: that of the precision policy unless a flag sets it.
func (j *Job) scaling(p precision.Policy) (precision.Scaling, error) {
	switch j.LossScale {
	case "":
		return p.Scaling, nil
	case "none":
		return precision.Scaling{}, nil
	case "dynamic":
		return precision.Dynamic(), nil
	}
	scale, err := strconv.ParseFloat(j.LossScale, 64)
	if err != nil {
		return precision.Scaling{}, fmt.Errorf("--loss-scale=%s: want none, dynamic or a number", j.LossScale)
	}
	return precision.Static(scale), nil
}

// Resumed returns the job of a checkpoint. Flags may change the number of steps and the layout; any other flag must
// have the checkpoint's value.
func (j *Job) Resumed(given *pflag.FlagSet, c *checkpoint.Checkpoint) (*Job, error) {
	was := Job{Parallel: OneDevice()}
	if err := c.Meta(&was); err != nil || was.TextSHA == "" {
		return nil, errors.Join(fmt.Errorf("%s was not written by shardbook train", c.Path), err)
	}
	was.normalize()
	saved := pflag.NewFlagSet("", pflag.ContinueOnError)
	was.flags(saved)
	was.run(saved)
	var err error
	given.Visit(func(f *pflag.Flag) {
		flag := saved.Lookup(f.Name)
		if err == nil && flag != nil && f.Name != "steps" && f.Value.String() != flag.Value.String() {
			err = fmt.Errorf("--%s=%s: the run in %s has %q; leave the flag out to continue it, or train anew in "+
				"another folder", f.Name, f.Value, c.Path, flag.Value)
		}
	})
	if err != nil {
		return nil, err
	}
	if was.Parallel, err = was.Parallel.resumed(given); err != nil || !given.Changed("steps") {
		return &was, err
	}
	if was.Schedule != "constant" && j.Steps != was.Steps {
		return nil, fmt.Errorf("--steps=%d: the learning rate of the run in %s falls over %d steps; leave the flag out",
			j.Steps, c.Path, was.Steps)
	}
	was.Steps = j.Steps
	return &was, nil
}

// names maps the Go names of fields in library errors to flags. A name that is a prefix of another one comes after it.
var names = strings.NewReplacer("Config.Layers", "--layers", "Config.Width", "--d", "Config.Heads", "--heads",
	"Config.Seq", "--seq", "Config.KVHeads", "--kv-heads", "Config.Hidden", "--hidden", "Config.Activation",
	"--activation", "Config.Norm", "--norm", "Config.Positions", "--positions", "Config.Dropout", "--dropout",
	"Config.PerToken",
	"--experts-per-token", "Config.Router", "--router", "Config.Capacity", "--capacity", "Config.Balance", "--balance",
	"Config.ZLoss", "--z-loss", "Config.BiasRate", "--bias-rate", "Config.SharedExperts", "--shared-experts",
	"and DenseLayers", "and --dense-layers", "Config.QKNorm", "--qk-norm", "Config.Experts.Capacity", "--capacity",
	"Config.Experts.Experts", "--experts", "Config.Experts", "--experts", "Config.Flash", "--flash", "Config.Matmul", "--precision", "Config.Recompute", "--recompute", "Config.CompressReLU",
	"--compress-relu", "Config.Compress", "--compress", "Recipe.Clip", "--clip", "Recipe.Precision", "--precision",
	"Options.Sync", "--sync", "Options.Every", "--every", "Options.Servers", "--servers", "Options.Stage", "--zero",
	"Options.BucketBytes", "--bucket-bytes", "Options.Accumulate", "--accumulate", "Layout.Replicas", "--replicas",
	"Layout.Data", "--data", "Layout.ZeRO", "--zero", "Layout.Prefetch", "--prefetch", "Layout.Schedule", "--schedule",
	"Layout.Shards", "--shards", "Layout.Partition", "--tensor-partition", "Layout.Recompute", "--recompute-stages",
	"Layout.Sync", "--sync", "Layout.BucketBytes", "--bucket-bytes", "Layout.Ulysses", "--seq-ulysses",
	"Layout.Microbatches", "--accumulate", "Layout.Hook and Every", "--compress-gradients and --every", "Layout.Hook",
	"--compress-gradients", "Layout.Every", "--every", "Layout.TensorSequence", "--tensor-sequence", "Layout.Tensor",
	"--tensor", "Layout.Experts", "Layout.Experts", "Layout.Expert", "--expert-parallel", "or put them on the devices of "+
		"a rank, with Data", "or put them on the devices of a rank, by --replicas with --data", "the sequence method", "--seq-method", "sequence: Placement", "sequence: --placement",
	"without Ring: choose a mesh axis for Ring", "without a ring: choose --seq-method ring", "updates on the host need",
	"--offload-optimizer: updates on the host need", "Sync and BucketBytes", "--sync and --bucket-bytes",
	"BucketBytes ", "--bucket-bytes ", "(Every)", "(--every)", " and Sync ", " and --sync ", " and ZeRO ",
	" and --zero ", "and Replicas is 1", "and there is one", "or ZeRO", "or --zero", "set Sync to", "choose --sync",
	"or use Replicas", "or have several: --replicas, or --data where each rank has a device", "parallel: ", "",
	"pipeline: ", "--pipe, --cut: ", "or a model with more blocks", "or more --layers", "untie it", "leave out --tied",
	"and loss scaling need", "and --loss-scale need")

// InFlags replaces the names of fields in a library's error by those of flags. It returns nil for nil.
func InFlags(err error) error {
	if err == nil {
		return nil
	}
	return flagError{err, names.Replace(err.Error())}
}

// flagError is an error with another text.
type flagError struct {
	error
	words string
}

func (e flagError) Error() string { return e.words }

func (e flagError) Unwrap() error { return e.error }
