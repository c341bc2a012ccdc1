package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/compress"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/recompute"
	"github.com/shardbook/shardbook/lib/train"
)

// job is everything that decides what a run computes. A checkpoint keeps it.
type job struct {
	Reference  bool       `json:"reference,omitempty"`
	Model      gpt.Config `json:"model"`
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
	Parallel   parallel   `json:"parallel"`
}

// newJob is the job without flags: a model small enough to watch it learn.
func newJob() *job {
	return &job{Model: gpt.Config{Layers: 4, Width: 128, Heads: 4, Seq: 128, Vocab: 256,
		Norm: gpt.LayerNorm, Positions: gpt.Learned}, Text: "go", Batch: 16, Steps: 100,
		Precision: "fp32", Optimizer: "adamw", LR: 1e-3, Schedule: "constant", Parallel: alone()}
}

// referenceFixes are the flags that the reference run leaves no choice of.
var referenceFixes = []string{"text", "text-bytes", "seed", "precision", "loss-scale", "optimizer", "lr", rateFlag, "warmup",
	"clip", "kv-heads", "hidden", "gated", "norm", "positions", "tied", "no-bias", "dropout", "stochastic-rounding", "activation",
	"compress", "compress-relu"}

// fixReference makes the job the reference run, of the reference model's size where a flag has not given another.
func (j *job) fixReference(given func(flag string) bool) {
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
}

// normalize gives what has several names one, for a checkpoint to compare. A name that is wrong stays.
func (j *job) normalize() {
	j.Parallel.normalize()
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

// tight returns the flag of a codec that may have too little room, as it was given; "" if there is none.
func (j *job) tight() string {
	for _, c := range [][2]string{{"compress-relu", j.Model.CompressReLU}, {"compress", j.Model.Compress}} {
		if strings.HasPrefix(c[1], "csr:") && c[1] != "csr:1" {
			return fmt.Sprintf("--%s=%s", c[0], c[1])
		}
	}
	return ""
}

// remedy says what to do where gradients became NaN: more room, if there may be too little, and else what is given.
func (j *job) remedy(otherwise string) string {
	if flag := j.tight(); flag != "" {
		return flag + " may have too little room, which makes all that it keeps NaN: raise its capacity, to 1 at most"
	}
	return otherwise
}

// modelFlags are the flags of what a library's error calls by its name in Go; a name that another begins with comes after it.
var modelFlags = strings.NewReplacer("Config.Layers", "--layers", "Config.Width", "--d", "Config.Heads", "--heads",
	"Config.Seq", "--seq", "Config.KVHeads", "--kv-heads", "Config.Hidden", "--hidden", "Config.Activation", "--activation",
	"Config.Norm", "--norm", "Config.Positions", "--positions", "Config.Dropout", "--dropout", "Config.Flash", "--flash",
	"Config.Matmul", "--precision", "Config.Recompute", "--recompute",
	"Config.CompressReLU", "--compress-relu", "Config.Compress", "--compress", "Recipe.Clip", "--clip",
	"Options.Sync", "--sync", "Options.Every", "--every", "Options.Servers", "--servers",
	"Options.Stage", "--zero", "Recipe.Precision", "--precision", "updates on the host", "--offload-optimizer: updates on the host",
	"Layout.Replicas", "--replicas", "Layout.Data", "--data", "Layout.ZeRO", "--zero", "Layout.Prefetch", "--prefetch",
	"Layout.Schedule", "--schedule", "Layout.Shards", "--shards", "Layout.Partition", "--tensor-partition", "Layout.Recompute", "--recompute-stages",
	"Layout.Sync", "--sync", "Layout.BucketBytes", "--bucket-bytes", "Layout.Hook and Every", "--compress-gradients and --every",
	"Layout.Hook", "--compress-gradients", "Layout.Every", "--every", "Layout.Tensor", "--tensor",
	"Sync and BucketBytes", "--sync and --bucket-bytes", "BucketBytes ", "--bucket-bytes ", "(Every)", "(--every)", " and Sync ", " and --sync ",
	" and ZeRO ", " and --zero ", "and Replicas is 1", "and there is one",
	"or ZeRO", "or --zero", "set Sync to", "choose --sync", "or use Replicas", "or have several: --replicas, or --data where each rank has a device", "parallel: ", "", "pipeline: ", "--pipe, --cut: ",
	"or a model with more blocks", "or more --layers", "untie it", "leave out --tied", "and loss scaling need", "and --loss-scale need")

// inFlags returns an error with the flags' names.
func inFlags(err error) error {
	if err == nil {
		return nil
	}
	return flagError{err, modelFlags.Replace(err.Error())}
}

// flagError is an error in other words.
type flagError struct {
	error
	words string
}

func (e flagError) Error() string { return e.words }

func (e flagError) Unwrap() error { return e.error }

// corpus reads the text, and notes what it is.
func (j *job) corpus() (gpt.Corpus, error) {
	var limit []gpt.Option
	switch {
	case j.TextBytes < 0:
		return gpt.Corpus{}, fmt.Errorf("--text-bytes=%d: want at least 1, or 0 for all", j.TextBytes)
	case j.TextBytes > 0 && j.Text == "reference":
		return gpt.Corpus{}, fmt.Errorf("--text-bytes=%d: the reference text is read in a circle, always whole; leave the flag out", j.TextBytes)
	case j.TextBytes > 0:
		limit = append(limit, gpt.Limit(j.TextBytes))
	}
	var c gpt.Corpus
	var err error
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

// recipe makes the training step that the job describes.
func (j *job) recipe() (train.Recipe, error) {
	policy, err := precision.ParsePolicy(j.Precision)
	if err != nil {
		return train.Recipe{}, fmt.Errorf("--precision: %w", err)
	}
	if policy.Scaling, err = j.scaling(policy); err != nil {
		return train.Recipe{}, err
	}
	policy.StochasticUpdate = j.Stochastic
	rule, err := optim.Parse(j.Optimizer, j.LR)
	if err != nil {
		return train.Recipe{}, fmt.Errorf("--optimizer, --lr: %w", err)
	}
	schedule, err := j.schedule()
	if err != nil {
		return train.Recipe{}, err
	}
	if schedule != nil {
		rule = optim.Scheduled(rule, schedule)
	}
	model := j.Model
	model.Matmul = policy.Matmul
	r := train.Recipe{Model: j.Parallel.model(model), Optimizer: rule, Precision: policy, Clip: j.Clip, Seed: j.Seed}
	return r, inFlags(r.Validate())
}

// schedule is nil for a learning rate that stays.
func (j *job) schedule() (optim.Schedule, error) {
	var s optim.Schedule
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
	switch {
	case j.Warmup < 0:
		return nil, fmt.Errorf("--warmup=%d: want at least 0", j.Warmup)
	case j.Warmup > 0:
		return optim.Warmup{Steps: j.Warmup, Then: s}, nil
	case j.Schedule == "constant":
		return nil, nil
	}
	return s, nil
}

// scaling is the policy's own where no flag says otherwise.
func (j *job) scaling(p precision.Policy) (precision.Scaling, error) {
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

// resumed returns the job of a checkpoint, which may train on for more steps than it was to, and on other devices. Any other
// flag that was given must say what the job says.
func (j *job) resumed(cmd *cobra.Command, c *checkpoint.Checkpoint) (*job, error) {
	was := job{Parallel: alone()}
	if err := c.Meta(&was); err != nil || was.TextSHA == "" {
		return nil, errors.Join(fmt.Errorf("%s was not written by shardbook train", c.Path), err)
	}
	was.normalize()
	kept := pflag.NewFlagSet("", pflag.ContinueOnError)
	jobFlags(kept, &was)
	var err error
	cmd.Flags().Visit(func(given *pflag.Flag) {
		flag := kept.Lookup(given.Name)
		if err == nil && flag != nil && given.Name != "steps" && given.Value.String() != flag.Value.String() {
			err = fmt.Errorf("--%s=%s: the run in %s has %q; leave the flag out to go on with it, or train anew in another folder",
				given.Name, given.Value, c.Path, flag.Value)
		}
	})
	if err != nil {
		return nil, err
	}
	if was.Parallel, err = was.Parallel.resumed(cmd.Flags()); err != nil || !cmd.Flags().Changed("steps") {
		return &was, err
	}
	if was.Schedule != "constant" && j.Steps != was.Steps {
		return nil, fmt.Errorf("--steps=%d: the learning rate of the run in %s falls over %d steps; leave the flag out",
			j.Steps, c.Path, was.Steps)
	}
	was.Steps = j.Steps
	return &was, nil
}
