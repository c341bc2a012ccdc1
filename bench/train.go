package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/shardbook/shardbook/lib/chart"
	"github.com/shardbook/shardbook/lib/gpt"
)

// training measures a training step of the reference model on one device: forward,
// loss, backward and AdamW, with a batch that is there already (ours is handed it anew
// each time, some kilobytes). All implementations begin with the same weights and
// text, and must have the same losses.
type training struct {
	override trainSize // where not zero
}

func newTraining() benchmark { return &training{} }

func (*training) name() string { return "train" }

func (*training) about() string { return "a training step of the reference GPT on one device, float32" }

func (b *training) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.IntVar(&b.override.Layers, "layers", 0, "number of blocks (default that of the case, as below)")
	flags.IntVar(&b.override.Width, "d", 0, "features of a position")
	flags.IntVar(&b.override.Heads, "heads", 0, "attention heads")
	flags.IntVar(&b.override.Seq, "seq", 0, "positions of a sequence")
	flags.IntVar(&b.override.Batch, "batch", 0, "sequences of a batch")
}

// trainParams is what the workers get to know. The peers have the text from here.
type trainParams struct {
	trainSize
	Vocab int    `json:"vocab"`
	Text  string `json:"text"`
}

func (b *training) cases() ([]testCase, error) {
	var cases []testCase
	var seen []trainSize
	for _, size := range trainSizes {
		size = size.with(b.override)
		if slices.Contains(seen, size) {
			continue
		}
		seen = append(seen, size)
		corpus := gpt.Reference()
		if _, err := corpus.Batches(size.config(), size.Batch); err != nil {
			return nil, fmt.Errorf("%v: %w", size, err)
		}
		cases = append(cases, testCase{
			name:   size.String(),
			params: trainParams{size, size.config().Vocab, string(corpus.Text)},
			want:   trainLosses[size],
			within: trainTolerance,
		})
	}
	return cases, nil
}

func (b *training) implementations() []implementation {
	return []implementation{
		{name: "xla", about: "this project on XLA's CPU device", role: ours, serve: serveTraining(1, startOne)},
		{name: "xla-malloc", about: "the same, with glibc told to keep freed memory", role: ours, env: []string{keepMemory},
			serve: serveTraining(1, startOne)},
		{name: "jax", about: "jit, with the state given up", role: peer, commands: trainPeer(nil, "jax")},
		{name: "jax-malloc", about: "the same, with glibc told to keep freed memory", role: peer,
			commands: trainPeer([]string{keepMemory}, "jax")},
		{name: "torch", about: "eager, a thread a core", role: peer,
			commands: trainPeer(nil, "torch", "--threads="+strconv.Itoa(runtime.NumCPU()))},
	}
}

func trainPeer(env []string, args ...string) func(context.Context, place) ([]*exec.Cmd, error) {
	return func(ctx context.Context, p place) ([]*exec.Cmd, error) {
		cmd := exec.CommandContext(ctx, p.python, append([]string{filepath.Join(p.scripts, "train.py")}, args...)...)
		cmd.Env = slices.Concat(os.Environ(), []string{"JAX_PLATFORMS=cpu", "CUDA_VISIBLE_DEVICES="}, env)
		return []*exec.Cmd{cmd}, nil
	}
}

// charts draws how the peers compare to us, and lists all there is to say of each.
func (b *training) charts(records []record) []*chart.Chart {
	header := []string{"case", "", "ms", "ratio", "least", "temporary MiB", "ratio", "all planned MiB", "ratio", "peak RSS MiB"}
	var cases []string
	var rows [][]string
	var bars []chart.Series
	for _, r := range records {
		if !slices.Contains(cases, r.Case) {
			cases = append(cases, r.Case)
		}
		rows = append(rows, []string{r.Case, r.Impl, cell("%.4g", r.MedianMS), cell("%.2f", r.Ratio), cell("%.2f", r.RatioMin),
			cell("%.1f", mebibytes(r.Temporary)), cell("%.2f", r.TempRatio),
			cell("%.1f", mebibytes(r.planned())), cell("%.2f", r.MemoryRatio), cell("%.1f", mebibytes(r.PeakRSS))})
		if r.Role == peer {
			bars = addBar(bars, r.Impl+", time", r.Ratio)
			bars = addBar(bars, r.Impl+", memory", r.MemoryRatio)
		}
	}
	charts := []*chart.Chart{chart.Table("Each by itself; the ratios are theirs over ours", header, rows)}
	if bars != nil {
		charts = append(charts, chart.Bar("The peers against us", cases, bars...).Axes("", "theirs / ours"))
	}
	return charts
}

// addBar adds a case's value to the series of that name; 0 is none.
func addBar(bars []chart.Series, name string, value float64) []chart.Series {
	if value == 0 {
		return bars
	}
	i := slices.IndexFunc(bars, func(s chart.Series) bool { return s.Name == name })
	if i < 0 {
		return append(bars, chart.Series{Name: name, Y: []float64{value}})
	}
	bars[i].Y = append(bars[i].Y, value)
	return bars
}

// cell writes a number, or a dash where there is none.
func cell(format string, value float64) string {
	if value == 0 {
		return "–"
	}
	return fmt.Sprintf(format, value)
}

func mebibytes(bytes int64) float64 { return float64(bytes) / (1 << 20) }
