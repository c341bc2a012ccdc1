package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/shardbook/shardbook/internal/plugin"
	"github.com/shardbook/shardbook/lib/cost"
	"github.com/shardbook/shardbook/lib/xla"
)

// gpuBench measures training steps and causal attention on one GPU, or for tests on the CPU. All implementations
// of a training step begin with the same weights and tokens, and must have the same losses within rounding; those of
// attention are given the same operands and output gradient, and must have the same output and gradients.
//
// An implementation of ours waits for the device at each step. The peers run ahead of it, as they do for their users,
// and wait at the end of a sample.
type gpuBench struct {
	device    string // "cuda" or "cpu"
	tiny      bool
	only      []string // parts: classes
	models    []string
	batch     int // of models, where not 0
	tokens    []int
	precision string
	sdpa      string // PyTorch's backend of attention in training steps
}

const (
	gpuName = "gpu"
	onCUDA  = string(plugin.CUDA)
	onCPU   = string(plugin.CPU)

	trains, attends = "train", "attention" // the classes

	// Nothing else uses the GPU, and a sample has the time of several steps.
	trainSampleMS, attentionSampleMS = 300, 100
)

func newGPU() *benchmark {
	var b gpuBench
	return &benchmark{name: gpuName,
		about: "on one GPU: a training step of GPT-2 124M and of Llama 3.2 1B, and causal attention, in bfloat16",
		peers: true, staged: true, rounds: 7, flags: b.flags, cases: b.cases, implementations: b.implementations,
		targets: b.targets}
}

func (b *gpuBench) flags(flags *pflag.FlagSet) {
	flags.StringVar(&b.device, "device", onCUDA, "device to measure on: cuda, or cpu to try the benchmark itself")
	flags.BoolVar(&b.tiny, "tiny", false, "small models and short sequences, to try the benchmark itself")
	flags.StringSliceVar(&b.only, "only", []string{trains, attends}, "parts to measure")
	flags.StringSliceVar(&b.models, "models", []string{"gpt2", "llama"}, "models to train")
	flags.IntVar(&b.batch, "batch", 0, "sequences of a batch (default that of the model)")
	flags.IntSliceVar(&b.tokens, "sizes", []int{1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10},
		"lengths of the sequences that attend, in tokens")
	flags.StringVar(&b.precision, "precision", "bf16", "bf16 with float32 master weights, or fp32")
	flags.StringVar(&b.sdpa, "sdpa", "cudnn", "PyTorch's backend of attention in training steps: cudnn or flash")
}

// args are the flags that a worker process of this program needs.
func (b *gpuBench) args() []string { return []string{"--device=" + b.device} }

func (b *gpuBench) check() error {
	for _, f := range []struct {
		name    string
		given   []string
		allowed []string
	}{
		{"device", []string{b.device}, []string{onCUDA, onCPU}}, {"only", b.only, []string{trains, attends}},
		{"models", b.models, []string{"gpt2", "llama"}}, {"precision", []string{b.precision}, []string{"bf16", "fp32"}},
		{"sdpa", []string{b.sdpa}, []string{"cudnn", "flash"}},
	} {
		for _, given := range f.given {
			if !slices.Contains(f.allowed, given) {
				return fmt.Errorf("--%s: %q, want %s", f.name, given, strings.Join(f.allowed, " or "))
			}
		}
	}
	return nil
}

func (b *gpuBench) cases() (cases []testCase, err error) {
	if err := b.check(); err != nil {
		return nil, err
	}
	peak := b.peak()
	if slices.Contains(b.only, trains) {
		for _, name := range b.models {
			c, err := b.model(name)
			if err != nil {
				return nil, err
			}
			flops, err := c.flops()
			if err != nil {
				return nil, err
			}
			cases = append(cases, testCase{name: c.String(), class: trains, params: c, within: c.tolerance(),
				sampleMS: trainSampleMS, apart: c.apart,
				describe: func(r *record) { r.achieved(c.Batch*c.Seq, flops, peak) }})
		}
	}
	if slices.Contains(b.only, attends) {
		attention, err := b.attention()
		if err != nil {
			return nil, err
		}
		for _, c := range attention {
			cases = append(cases, testCase{name: c.String(), class: attends, params: c, within: c.tolerance(),
				sampleMS: attentionSampleMS,
				describe: func(r *record) { r.achieved(c.Batch*c.Tokens, stepFLOPs{causal: c.flops()}, peak) }})
		}
	}
	return cases, nil
}

// achieved fills in what follows from the time of a step on tokens. A peak of 0 is not known.
func (r *record) achieved(tokens int, flops stepFLOPs, peak float64) {
	if r.MedianMS <= 0 {
		return
	}
	perSecond := 1e3 / r.MedianMS
	r.TokensPerSecond = round(float64(tokens) * perSecond)
	if flops.all > 0 {
		r.TFLOPS = round(flops.all * perSecond / 1e12)
	} else {
		r.TFLOPS = round(flops.causal * perSecond / 1e12)
	}
	if peak > 0 {
		r.MFU, r.CausalMFU = round(flops.all*perSecond/peak), round(flops.causal*perSecond/peak)
	}
}

// peak is that of the GPU's dense matmuls in FLOPs a second, or 0 where it is not known.
func (b *gpuBench) peak() float64 {
	if b.device != onCUDA {
		return 0
	}
	card, _, _ := strings.Cut(graphicsCard(context.Background()), ",")
	hardware, err := cost.Accelerator(card)
	if err != nil {
		return 0
	}
	peak, err := hardware.PeakFLOPS(b.precision)
	if err != nil {
		return 0
	}
	return peak
}

func (b *gpuBench) implementations() []implementation {
	all := []implementation{
		{name: "xla", about: "this project: lib/train, one program", role: ours, class: trains, serve: b.serveTraining},
		{name: "jax", about: "jit, attention by cuDNN, with the state donated", role: peer, class: trains,
			commands: b.script("train", "jax")},
		{name: "torch-compile", about: "torch.compile by default settings, autocast, fused AdamW", role: peer, class: trains,
			commands: b.script("train", "torch-compile", "--sdpa="+b.sdpa)},
		{name: "torch", about: "the same, eager", role: peer, class: trains,
			commands: b.script("train", "torch", "--sdpa="+b.sdpa)},
		{name: "flash", about: "lib/flash", role: ours, class: attends, serve: b.serveAttention},
		{name: "jax-cudnn", about: "jax.nn.dot_product_attention by cuDNN", role: peer, class: attends,
			commands: b.script("attention", "jax")},
		{name: "torch-cudnn", about: "scaled_dot_product_attention by cuDNN", role: peer, class: attends,
			commands: b.script("attention", "torch", "--sdpa=cudnn")},
		{name: "torch-flash", about: "scaled_dot_product_attention by its flash kernel", role: peer, class: attends,
			commands: b.script("attention", "torch", "--sdpa=flash")},
	}
	for i := range all {
		all[i].args = b.args()
	}
	return slices.DeleteFunc(all, func(im implementation) bool { return !slices.Contains(b.only, im.class) })
}

// gpuMemory has JAX take memory only as it needs it, up to nine tenths, as lib/xla does: the processes share the GPU.
var gpuMemory = []string{"XLA_PYTHON_CLIENT_PREALLOCATE=false", "XLA_CLIENT_MEM_FRACTION=0.9"}

// script starts peers/gpu.py on the device.
func (b *gpuBench) script(args ...string) commands {
	return func(ctx context.Context, p place) ([]*exec.Cmd, error) {
		cmd := exec.CommandContext(ctx, p.python,
			append([]string{filepath.Join(p.scripts, "gpu.py"), "--device=" + b.device}, args...)...)
		cmd.Env = append(append(os.Environ(), "JAX_PLATFORMS="+b.device), gpuMemory...)
		return []*exec.Cmd{cmd}, nil
	}
}

// open opens the device in a worker.
func (b *gpuBench) open(ctx context.Context) (*xla.Backend, error) {
	if b.device == onCPU {
		return openXLA(ctx, 1, xla.CompileAfresh())
	}
	backend, err := openPlugin(ctx, 1)
	if err == nil && string(backend.Info().Platform) != onCUDA {
		backend.Close()
		return nil, fmt.Errorf("plugin %q is not for CUDA: set %s to xla_cuda_plugin.so, or measure with --device=cpu",
			backend.Info().Plugin, plugin.Env)
	}
	return backend, err
}

// What the project wants on a GPU.
const (
	jaxSpeed     = 1    // of JAX's speed in a training step
	compileSpeed = 0.9  // of torch.compile's
	cudnnSpeed   = 1    // of cuDNN's in attention, as PyTorch reaches it
	wantMFU      = 0.45 // of the model of a billion parameters
)

// targets compares by the median ratio. What was not measured is not met.
func (b *gpuBench) targets(records []record) (all []target) {
	if b.device != onCUDA {
		return nil
	}
	find := func(name, impl string) (record, bool) {
		i := slices.IndexFunc(records, func(r record) bool { return r.Case == name && r.Impl == impl })
		if i < 0 {
			return record{}, false
		}
		return records[i], true
	}
	add := func(what string, got, want float64, unit string, measured bool) {
		text := fmt.Sprintf("%s: %.4g%s, want at least %g%s", what, got, unit, want, unit)
		if !measured {
			text = fmt.Sprintf("%s: not measured, want at least %g%s", what, want, unit)
		}
		all = append(all, target{text, measured && got >= want})
	}
	speed := func(name, impl, who string, want float64) {
		r, found := find(name, impl)
		add(fmt.Sprintf("%s: speed over %s", name, who), r.Ratio, want, "", found && r.Ratio > 0)
	}
	cases, err := b.cases()
	if err != nil {
		return nil
	}
	for _, c := range cases {
		if c.class == attends {
			speed(c.name, "torch-cudnn", "cuDNN's in PyTorch", cudnnSpeed)
			continue
		}
		speed(c.name, "jax", "JAX's", jaxSpeed)
		speed(c.name, "torch-compile", "torch.compile's", compileSpeed)
		if c.params.(gpuTraining).billion() {
			r, found := find(c.name, "xla")
			add(c.name+": MFU", math.Round(1000*r.MFU)/10, 100*wantMFU, " %", found && r.MFU > 0)
		}
	}
	return all
}
