package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/xla"
)

func defaultGPU() *gpuBench {
	return &gpuBench{device: onCUDA, only: []string{trains, attends}, models: []string{"gpt2", "llama"},
		tokens: []int{1024, 32768}, precision: "bf16", sdpa: "cudnn"}
}

// TestGPUModels compares the models' parameters with the published counts, and the FLOPs of a step with PaLM's formula.
func TestGPUModels(t *testing.T) {
	for name, want := range map[string]int{"gpt2": 124439808, "llama": 1235814400} {
		c := must.Get(defaultGPU().model(name))(t)
		n := 0
		for _, s := range c.Params() {
			n += s.Size()
		}
		if n != want {
			t.Errorf("%s has %d parameters, want %d", name, n, want)
		}
		f := must.Get(c.flops())(t)
		tokens := float64(c.Batch * c.Seq)
		pairs := 12 * float64(c.Layers*c.Width*c.Seq)
		got := f.all / tokens
		// Positions, biases and norms are no matmuls.
		if formula := 6*float64(n) + pairs; math.Abs(got/formula-1) > 0.01 {
			t.Errorf("%s: %g FLOPs a token, want about %g", name, got, formula)
		}
		if half := (f.all - f.causal) / tokens / pairs; math.Abs(half-0.5) > 1e-3 {
			t.Errorf("%s: the causal mask leaves out %g of the scores, want a half", name, half)
		}
	}
	c := gpuAttention{Batch: 2, Tokens: 3, Heads: 5, Width: 7}
	if got, want := c.flops(), 7*(2*2*5*3*3*7)/2.; got != want {
		t.Errorf("attention has %g FLOPs, want %g", got, want)
	}
}

// TestGPUTokens: a batch is the same each time, targets are the next inputs, and small tokens are frequent.
func TestGPUTokens(t *testing.T) {
	c := must.Get(defaultGPU().model("llama"))(t)
	inputs, targets, err := c.step(3)
	must.Do(t, err)
	again, _, _ := c.step(3)
	other, _, _ := c.step(2)
	in, out := tensors.MustCopyFlatData[int32](inputs), tensors.MustCopyFlatData[int32](targets)
	same, changed := tensors.MustCopyFlatData[int32](again), tensors.MustCopyFlatData[int32](other)
	if !slices.Equal(in, same) || slices.Equal(in, changed) {
		t.Error("a batch is not a function of its number")
	}
	if !slices.Equal(in[1:c.Seq], out[:c.Seq-1]) {
		t.Error("targets are not the next inputs")
	}
	// The number of bits is below that of the vocabulary, 17: an 17th of the tokens is 0 for certain.
	zeros, large := 0, 0
	for _, token := range in {
		switch {
		case token < 0 || int(token) >= c.Vocab:
			t.Fatalf("token %d of a vocabulary of %d", token, c.Vocab)
		case token == 0:
			zeros++
		case token >= 1<<15:
			large++
		}
	}
	n := float64(len(in))
	if p := float64(zeros) / n; p < 0.1 || p > 0.14 { // 2/17
		t.Errorf("%g of the tokens are 0", p)
	}
	if p := float64(large) / n; p < 0.02 || p > 0.04 { // 1/34
		t.Errorf("%g of the tokens are large", p)
	}
}

// TestGPUTargets compares made-up records with the targets.
func TestGPUTargets(t *testing.T) {
	b := defaultGPU()
	b.models, b.tokens = []string{"llama"}, nil
	cases := must.Get(b.cases())(t)
	llama, attention := cases[0].name, cases[1].name
	records := []record{
		{Case: llama, Impl: "xla", details: details{MFU: 0.451}},
		{Case: llama, Impl: "jax", Ratio: 0.99},
		{Case: llama, Impl: "torch-compile", Ratio: 0.9},
	}
	var got []string
	for _, t := range b.targets(records) {
		got = append(got, t.String())
	}
	want := []string{
		"FAIL: " + llama + ": speed over JAX's: 0.99, want at least 1",
		"PASS: " + llama + ": speed over torch.compile's: 0.9, want at least 0.9",
		"PASS: " + llama + ": MFU: 45.1 %, want at least 45 %",
		"FAIL: " + attention + ": speed over cuDNN's in PyTorch: not measured, want at least 1",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if b.device = onCPU; b.targets(records) != nil {
		t.Error("a CPU has targets")
	}
}

// TestAchieved takes 989.4 TFLOP/s for the peak, half of which a step reaches.
func TestAchieved(t *testing.T) {
	r := record{MedianMS: 100}
	r.achieved(1000, stepFLOPs{all: 49.47e12, causal: 24.735e12}, 989.4e12)
	if want := (details{TokensPerSecond: 10000, TFLOPS: 494.7, MFU: 0.5, CausalMFU: 0.25}); r.details != want {
		t.Errorf("got %+v, want %+v", r.details, want)
	}
	r = record{MedianMS: 100}
	r.achieved(1000, stepFLOPs{causal: 1e12}, 0)
	if want := (details{TokensPerSecond: 10000, TFLOPS: 10}); r.details != want {
		t.Errorf("without a peak %+v, want %+v", r.details, want)
	}
}

// TestGPUAttentionIsFused compiles the cases of attention for a GPU: none holds the scores of all pairs, since cuDNN
// has a kernel for it.
func TestGPUAttentionIsFused(t *testing.T) {
	backend := devicetest.OpenFor(t, "h100", 1)
	mesh := must.Get(backend.Mesh(xla.Axis("device", 1)))(t)
	for _, c := range must.Get(defaultGPU().attention())(t) {
		program := must.Get(attentionProgram(mesh))(t)
		var operands []any
		var bytes int64
		for _, heads := range []int{c.Heads, c.KVHeads, c.KVHeads, c.Heads} {
			shape := shapes.Make(dtypes.BFloat16, c.Batch, c.Tokens, heads, c.Width)
			operands = append(operands, tensors.FromShape(shape))
			bytes += shape.ByteSize()
		}
		must.Do(t, program.Prepare(operands...))
		memory := must.Get(program.Memory())(t)
		scores := 2 * int64(c.Batch) * int64(c.Heads) * int64(c.Tokens) * int64(c.Tokens)
		if scores < 2*bytes {
			t.Errorf("%v: the scores would not be seen in its memory", c)
		}
		// Statistics, and dense or copied operands and gradients.
		if memory.Temporary >= 3*bytes || memory.Arguments != bytes {
			t.Errorf("%v: %+v, of operands of %d bytes and scores of %d", c, memory, bytes, scores)
		}
		program.Close()
	}
}

// newStagedFake has a case of all implementations together and one of each apart.
func newStagedFake() *benchmark {
	b := newFake()
	b.name, b.staged = "staged", true
	b.cases = func() ([]testCase, error) {
		return []testCase{{name: "one", params: 1, within: 0.25}, {name: "two", params: 1, within: 0.25, apart: true}}, nil
	}
	return b
}

// TestStaged leaves out what fails and measures the rest, together and apart, and says at the end what failed.
func TestStaged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lines")
	records, err := run(t.Context(), newStagedFake(),
		"--rounds=2 --impls=half,one,near,off,wrong,unable,stillborn,good --out="+path)
	for _, want := range []string{"one: off: wrong result: [1.5], want [1] within 0.25", "two: off: wrong result",
		"one: wrong, prepare: wrong result: 1, want 2", "starting stillborn"} {
		must.Refuse(t, "the run", err, want)
	}
	var got []string
	for _, r := range records {
		got = append(got, fmt.Sprint(r.Case, " ", r.Impl, " ", r.Rounds))
	}
	want := []string{"one good 2", "one half 2", "one one 2", "one near 2", "two good 2", "two half 2", "two one 2",
		"two near 2"}
	if !slices.Equal(got, want) {
		t.Errorf("measured %q, want %q", got, want)
	}
	lines := strings.Split(strings.TrimSpace(string(must.Get(os.ReadFile(path))(t))), "\n")
	var about outcome
	if err := json.Unmarshal([]byte(lines[0]), &about); err != nil || about.Bench != "staged" || about.Machine.Cores == 0 {
		t.Errorf("the first line is %s (%v), want what the run is", lines[0], err)
	}
	// Apart, each is written as it is measured, and again beside the others.
	if n := len(lines) - 1; n != 4+4+4 {
		t.Errorf("%d records, want 12:\n%s", n, strings.Join(lines, "\n"))
	}
}

// TestStagedDies has an implementation that ends in the third round: the rounds before it count.
func TestStagedDies(t *testing.T) {
	records, err := run(t.Context(), newStagedFake(), "--rounds=9 --impls=half,mortal")
	must.Refuse(t, "the run", err, "last words")
	var got []string
	for _, r := range records {
		got = append(got, fmt.Sprint(r.Case, " ", r.Impl, " ", r.Rounds))
	}
	if want := []string{"one half 2", "one mortal 2", "two half 2", "two mortal 2"}; !slices.Equal(got, want) {
		t.Errorf("measured %q, want %q", got, want)
	}
}
