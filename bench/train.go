package main

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/shardbook/shardbook/lib/gpt"
)

// training measures a training step of the reference model on one device: forward, loss, backward and AdamW, with a
// batch that is there already (ours is passed it each time, some kilobytes). All implementations begin with the same
// weights and text, and must have the same losses. Other benchmarks are of the same cases.
type training struct {
	override trainSize // where not zero

	// rows divides the number of sequences of a batch; 0 means 1.
	rows int

	more []trainSize // measured besides trainSizes
}

func newTraining() *benchmark {
	b := training{more: []trainSize{gpt2Size}}
	return &benchmark{name: "train", about: "a training step of the reference GPT on one device, float32",
		flags: b.flags, cases: b.cases, implementations: trainImplementations}
}

func (b *training) flags(flags *pflag.FlagSet) {
	flags.IntVar(&b.override.Layers, "layers", 0, "number of blocks (default that of the case, as below)")
	flags.IntVar(&b.override.Width, "d", 0, "hidden size")
	flags.IntVar(&b.override.Heads, "heads", 0, "attention heads")
	flags.IntVar(&b.override.Seq, "seq", 0, "length of a sequence")
	flags.IntVar(&b.override.Batch, "batch", 0, "sequences of a batch")
}

// trainParams is what the workers are sent. The peers take the text from here.
type trainParams struct {
	trainSize
	Text string `json:"text"`
}

func (b *training) cases() ([]testCase, error) {
	var cases []testCase
	var seen []trainSize
	for _, size := range slices.Concat(trainSizes, b.more) {
		size = size.with(b.override)
		if slices.Contains(seen, size) {
			continue
		}
		seen = append(seen, size)
		if n := max(1, b.rows); size.Batch%n != 0 {
			return nil, fmt.Errorf("%v: a batch of %d sequences, want a multiple of %d", size, size.Batch, n)
		}
		corpus := gpt.Reference()
		if _, err := corpus.Batches(size.config(), size.Batch); err != nil {
			return nil, fmt.Errorf("%v: %w", size, err)
		}
		cases = append(cases, testCase{
			name:     size.String(),
			params:   trainParams{size, string(corpus.Text)},
			want:     trainLosses[size],
			within:   trainTolerance,
			describe: size.describe,
		})
	}
	return cases, nil
}

func trainImplementations() []implementation {
	return []implementation{
		{name: "xla", about: "this project on XLA's CPU device", role: ours, serve: serveGPT(1, startOne)},
		{name: "jax", about: "jit, with the state donated", role: peer, commands: python(nil, "train.py", "jax")},
		{name: "jax-malloc", about: "the same, with glibc told to keep freed memory", role: peer,
			commands: python([]string{keepMemory}, "train.py", "jax")},
		{name: "torch", about: "eager, a thread a core", role: peer, commands: trainTorch()},
		{name: "multiply-add", about: multiplyAddAbout, role: limit, serve: serveArithmetic},
	}
}

// trainTorch trains with PyTorch in one process.
func trainTorch() commands {
	return python(nil, "train.py", "torch", "--threads="+strconv.Itoa(runtime.NumCPU()))
}

// trainJAX trains on a mesh of devices of the host.
func trainJAX(devices int, args ...string) commands {
	return python([]string{jaxDevices(devices)}, "train.py",
		append([]string{"jax", "--devices=" + strconv.Itoa(devices)}, args...)...)
}

// ddpProcesses is the number of processes that PyTorch's data parallelism has.
const ddpProcesses = 2

func trainDDP(args ...string) commands {
	return torchProcesses(ddpProcesses, "train.py", append([]string{"torch"}, args...)...)
}

// trainSize is the size of a model and of its batch. The fields are those of [gpt.Config], and the number of sequences.
type trainSize struct {
	Layers int  `json:"layers"`
	Width  int  `json:"d"`
	Heads  int  `json:"heads"`
	Seq    int  `json:"seq"`
	Batch  int  `json:"batch"`
	Vocab  int  `json:"vocab"`
	Tied   bool `json:"tied"`
}

// trainSizes are measured by default: a small model, whose step is short enough to show
// the overhead of a step, and the reference model.
var trainSizes = []trainSize{
	{Layers: 2, Width: 128, Heads: 4, Seq: 64, Batch: 8, Vocab: 256},
	{Layers: 4, Width: 256, Heads: 8, Seq: 256, Batch: 16, Vocab: 256},
}

// gpt2Size is GPT-2 124M with the batch that llm.c trains on CPUs (train_gpt2.c: B = 4, T = 64).
var gpt2Size = trainSize{Layers: 12, Width: 768, Heads: 12, Seq: 64, Batch: 4, Vocab: 50257, Tied: true}

// trainLosses are the losses of the first steps. Those of the reference model are lib/gpt's; those of the others are
// what PyTorch 2.15 and JAX 0.10.2 agree on. At other sizes the implementations must agree with each other.
var trainLosses = map[trainSize][]float64{
	trainSizes[0]: {5.54506, 5.24437, 5.04355, 4.92261},
	trainSizes[1]: {5.58069, 4.70050, 4.37114, 4.22252},
	gpt2Size:      {11.09282, 8.07530, 6.96891, 6.49239},
}

const (
	// trainFirst is the number of steps whose losses are checked.
	trainFirst = 4

	// trainTolerance is the error allowed of losses, in nats. Rounding shows in their sixth digit.
	trainTolerance = 1e-4

	// trainRate is AdamW's learning rate.
	trainRate = 3e-4
)

func (s trainSize) String() string {
	text := fmt.Sprintf("layers %d, width %d, heads %d, %d×%d tokens", s.Layers, s.Width, s.Heads, s.Batch, s.Seq)
	if s.Tied {
		text += fmt.Sprintf(", vocabulary %d, tied", s.Vocab)
	}
	return text
}

func (s trainSize) tokens() int { return s.Batch * s.Seq }

func (s trainSize) describe(r *record) {
	if r.MedianMS > 0 {
		r.TokensPerSecond = round(float64(s.tokens()) / r.MedianMS * 1e3)
	}
}

func (s trainSize) config() gpt.Config {
	return gpt.Config{Layers: s.Layers, Width: s.Width, Heads: s.Heads, Seq: s.Seq, Vocab: s.Vocab, Tied: s.Tied}
}

// model is the configuration as the command trains it on CPUs.
func (s trainSize) model() gpt.Config {
	c := s.config()
	c.Flash = true
	return c
}

// with returns the size with those of its fields changed that are set in other.
func (s trainSize) with(other trainSize) trainSize {
	if other != (trainSize{}) { // sizes are given: one case
		s.Vocab, s.Tied = trainSizes[0].Vocab, false
	}
	return trainSize{cmp.Or(other.Layers, s.Layers), cmp.Or(other.Width, s.Width), cmp.Or(other.Heads, s.Heads),
		cmp.Or(other.Seq, s.Seq), cmp.Or(other.Batch, s.Batch), s.Vocab, s.Tied}
}
