package main

import (
	"errors"
	"fmt"
	"math"

	"github.com/shardbook/shardbook/internal/userfile"
	"github.com/shardbook/shardbook/lib/cost"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/precision"
)

// sizes are the flags for the sizes of a model.
var sizes = []string{"layers", "d", "heads", "kv-heads", "hidden", "vocab", "gated", "tied", "norm", "positions",
	"no-bias"}

// needModel are the flags that have no effect if only the number of parameters is known.
var needModel = []string{"activation", "tensor", "seq-parallel", "context", "pipe", "schedule", "chunks", "seq",
	"batch", "microbatches", "recompute",
	"flash", "dropout", "clip", "offload-activations", "bucket", "overhead", "engine"}

// model returns the model and its number of parameters; the model is nil if only that number is known.
func (r *estimateRequest) model() (*cost.Model, int64, error) {
	var ways []string
	for _, way := range [][]string{{"model"}, {"config"}, {"params"}, sizes} {
		for _, flag := range way {
			if r.isSet(flag) {
				ways = append(ways, "--"+flag)
				break
			}
		}
	}
	switch {
	case len(ways) == 0:
		return nil, 0, errors.New("no model is given: give --model NAME (--list-models lists them), --config FILE, " +
			"--params N, or --layers, --d, --heads, --vocab and --seq")
	case len(ways) > 1:
		return nil, 0, fmt.Errorf("%s and %s both describe the model: leave one of them out", ways[0], ways[1])
	case r.Params != "":
		for _, flag := range needModel {
			if r.isSet(flag) {
				return nil, 0, fmt.Errorf("--%s has no effect with --params, which gives no sizes of a model: "+
					"give --model, --config or --layers instead, or leave out --%[1]s", flag)
			}
		}
		n, err := r.Params.Count("params")
		return nil, n, err
	}
	m, err := r.sized()
	if err != nil {
		return nil, 0, err
	}
	switch r.Activation {
	case "":
	case gpt.ReLU:
		m.Activation = "relu"
	case gpt.Usual:
		m.Activation = "gelu"
		if m.Gated {
			m.Activation = "silu"
		}
	default:
		return nil, 0, fmt.Errorf("--activation=%s: want %s or %s", r.Activation, gpt.Usual, gpt.ReLU)
	}
	return &m, m.Params().Total(), m.Validate()
}

// sized returns the model of --model, --config or the sizes.
func (r *estimateRequest) sized() (cost.Model, error) {
	switch {
	case r.Model != "":
		m, err := cost.Preset(r.Model)
		if err != nil {
			return m, fmt.Errorf("--model: %w; --list-models lists all", err)
		}
		return m, nil
	case r.Config != "":
		m, err := readConfig(r.Config)
		if err != nil {
			return m, fmt.Errorf("--config: %w", err)
		}
		return m, nil
	}
	c := gpt.Config{Layers: r.Layers, Width: r.D, Heads: r.Heads, Seq: r.Seq, Vocab: r.Vocab, KVHeads: r.KVHeads,
		Hidden: r.Hidden,
		Gated:  r.Gated, Norm: r.Norm, Positions: r.Positions, Tied: r.Tied, NoBias: r.NoBias}
	if err := c.Validate(); err != nil {
		return cost.Model{}, fmt.Errorf("--layers, --d, --heads, --vocab, --seq: %w", err)
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

// setup returns the settings for lib/memest, without the model.
func (s *estimateSettings) setup() (memest.Setup, error) {
	for _, f := range []struct {
		flag  string
		value int
	}{{"data", s.Data}, {"tensor", s.Tensor}, {"context", s.Context}, {"pipe", s.Pipe}, {"chunks", s.Chunks},
		{"batch", s.Batch},
		{"microbatches", s.Microbatches}} {
		if f.value < 1 {
			return memest.Setup{}, fmt.Errorf("--%s=%d: want at least 1", f.flag, f.value)
		}
	}
	policy, err := precision.ParsePolicy(s.Precision)
	if err != nil {
		return memest.Setup{}, fmt.Errorf("--precision: %w", err)
	}
	optimizer, err := optim.Parse(s.Optimizer, 1e-3) // the learning rate changes no memory
	if err != nil {
		return memest.Setup{}, fmt.Errorf("--optimizer: %w", err)
	}
	engine, ok := map[string]memest.Method{"planned": memest.Planned, "compiled": memest.Compiled}[s.Engine]
	if !ok {
		return memest.Setup{}, fmt.Errorf("--engine=%s: want planned or compiled", s.Engine)
	}
	if !(s.Clip >= 0) || math.IsInf(s.Clip, 1) {
		return memest.Setup{}, fmt.Errorf("--clip=%g: want a number of at least 0", s.Clip)
	}
	bucket, err := s.Bucket.Bytes("bucket", 1)
	if err != nil {
		return memest.Setup{}, err
	}
	overhead, err := s.Overhead.Bytes("overhead", 0)
	if err != nil {
		return memest.Setup{}, err
	}
	return memest.Setup{
		Batch: s.Batch, Seq: s.Seq, Microbatches: s.Microbatches,
		Parallelism: memest.Parallelism{Data: s.Data, Tensor: s.Tensor, Seq: s.SeqParallel, Context: s.Context,
			Pipeline: s.Pipe,
			Schedule: memest.Schedule(s.Schedule), Chunks: s.Chunks, ZeRO: s.Zero},
		Precision: policy, Optimizer: optimizer, Recompute: s.Recompute, Flash: s.Flash, Dropout: s.Dropout,
		Clip:             s.Clip > 0,
		Method:           engine,
		OffloadOptimizer: s.OffloadOptimizer, OffloadActivations: s.OffloadActivations, Bucket: bucket,
		Framework: overhead,
	}, nil
}
