package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/pflag"

	"github.com/shardbook/shardbook/internal/userfile"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/recompute"
)

// estimateSettings say which run is estimated. Each is a flag, and a field of --file by the flag's name with _ for -.
type estimateSettings struct {
	// The model is one of the first three, or the sizes.
	Model     string        `json:"model,omitempty"`
	Config    string        `json:"config,omitempty"`
	Params    amount        `json:"params,omitempty"`
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
	Bucket             amount           `json:"bucket"`
	Overhead           amount           `json:"overhead"`
	Engine             string           `json:"engine"`

	Device string `json:"device,omitempty"`
	Memory amount `json:"memory,omitempty"`
	Tokens amount `json:"tokens,omitempty"`
}

// newEstimateSettings are the settings without flags, of no model yet.
func newEstimateSettings() *estimateSettings {
	return &estimateSettings{Data: 1, Tensor: 1, Context: 1, Pipe: 1, Schedule: string(memest.OneFOneB), Chunks: 1, Batch: 1, Microbatches: 1,
		Precision: "bf16", Optimizer: "adamw", Recompute: "none", Bucket: "25MB", Overhead: "0", Engine: "planned"}
}

// estimateFlags are the flags that decide what an estimate says.
func estimateFlags(f *pflag.FlagSet, s *estimateSettings) {
	text := func(p *string, name, usage string) { f.StringVar(p, name, *p, usage) }
	whole := func(p *int, name, usage string) { f.IntVar(p, name, *p, usage) }
	share := func(p *float64, name, usage string) { f.Float64Var(p, name, *p, usage) }
	yes := func(p *bool, name, usage string) { f.BoolVar(p, name, *p, usage) }

	text(&s.Model, "model", `a published model, such as "Llama 3 8B"`)
	text(&s.Config, "config", "a Hugging Face config.json")
	text((*string)(&s.Params), "params", "number of parameters where nothing else is known, as 7.5e9 or 7.5B")
	whole(&s.Layers, "layers", "Transformer blocks")
	whole(&s.D, "d", "width of the model")
	whole(&s.Heads, "heads", "attention heads")
	whole(&s.KVHeads, "kv-heads", "key and value heads (default as --heads)")
	whole(&s.Hidden, "hidden", "width inside the perceptron (default 4 times --d)")
	whole(&s.Vocab, "vocab", "tokens; shardbook train has 256")
	yes(&s.Gated, "gated", "gated perceptron (SwiGLU)")
	yes(&s.Tied, "tied", "head tied to the token embedding")
	text((*string)(&s.Norm), "norm", fmt.Sprintf("%s (default) or %s", gpt.LayerNorm, gpt.RMSNorm))
	text((*string)(&s.Positions), "positions", fmt.Sprintf("%s (default) or %s", gpt.Learned, gpt.Rotary))
	yes(&s.NoBias, "no-bias", "no biases in the blocks")
	text((*string)(&s.Activation), "activation", fmt.Sprintf("of the perceptron: %s (GELU, gated SiLU) or %s (default the model's own)", gpt.Usual, gpt.ReLU))

	whole(&s.Data, "data", "replicas of the model, each with its own sequences")
	whole(&s.Tensor, "tensor", "devices that share each block's matrices")
	yes(&s.SeqParallel, "seq-parallel", "they share what lies between the matrices too, by tokens")
	whole(&s.Context, "context", "devices that share each sequence, attention and all")
	whole(&s.Pipe, "pipe", "pipeline stages")
	text(&s.Schedule, "schedule", fmt.Sprintf("of the pipeline: one of %q", memest.Schedules()))
	whole(&s.Chunks, "chunks", "pieces of the model that each device of an interleaved pipeline has")
	whole(&s.Zero, "zero", "ZeRO stage: 1 shards optimizer states between replicas, 2 gradients too, 3 parameters too")

	whole(&s.Seq, "seq", "tokens of a sequence (default the longest that the model takes)")
	whole(&s.Batch, "batch", "sequences of a micro-batch on each replica")
	whole(&s.Microbatches, "microbatches", "micro-batches of a step on each replica")
	text(&s.Precision, "precision", fmt.Sprintf("one of %q", precision.Names()))
	text(&s.Optimizer, "optimizer", fmt.Sprintf("one of %q", optim.Names()))
	text((*string)(&s.Recompute), "recompute", recomputeUsage+"; or auto, the cheapest found that fits --device or --memory")
	yes(&s.Flash, "flash", "attention that keeps no scores")
	share(&s.Dropout, "dropout", "share of values dropped")
	share(&s.Clip, "clip", "largest norm of the gradients (default no limit)")
	yes(&s.OffloadOptimizer, "offload-optimizer", "optimizer states and master copy in host memory")
	yes(&s.OffloadActivations, "offload-activations", "activations in host memory")
	text((*string)(&s.Bucket), "bucket", "bytes of the buffer in which gradients are sent")
	text((*string)(&s.Overhead), "overhead", "bytes that the framework takes for itself on each device")
	text(&s.Engine, "engine", `planned, as in books, or compiled, as shardbook train does on a CPU`)

	text(&s.Device, "device", `say whether it fits on a device, such as "H100 SXM"`)
	text((*string)(&s.Memory), "memory", "say whether it fits in so much memory, as 80GB or 80GiB")
	text((*string)(&s.Tokens), "tokens", "tokens to train on, as 1e12 or 1T: say what that takes")
}

// estimateRequest is settings with what was said: what is not as it is without flags.
type estimateRequest struct {
	estimateSettings
	said func(flag string) bool
}

// readEstimateSettings takes settings from a file, if there is one, and from the flags that were given.
func readEstimateSettings(given *pflag.FlagSet, file string) (*estimateRequest, error) {
	r := &estimateRequest{estimateSettings: *newEstimateSettings()}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	estimateFlags(flags, &r.estimateSettings)
	if file != "" {
		if err := r.read(file); err != nil {
			return nil, fmt.Errorf("--file: %w", err)
		}
	}
	var err error
	given.Visit(func(f *pflag.Flag) {
		if flags.Lookup(f.Name) != nil && err == nil {
			err = flags.Set(f.Name, f.Value.String())
		}
	})
	r.said = func(flag string) bool { f := flags.Lookup(flag); return f.Value.String() != f.DefValue }
	return r, err
}

// maxSettings is the most bytes that a file of settings may have.
const maxSettings = 1 << 20

func (s *estimateSettings) read(path string) error {
	text, err := userfile.Read(path, maxSettings)
	if err != nil {
		return err
	}
	if err := s.parse(text); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// parse takes settings from JSON, and leaves those that are not in it as they are.
func (s *estimateSettings) parse(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(s); err != nil {
		return fmt.Errorf("%w: give one object, whose fields are the flags of shardbook estimate with _ for -", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("there is something after the object: leave it out")
	}
	return nil
}
