package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/shardbook/shardbook/lib/chart"
	"github.com/shardbook/shardbook/lib/flash"
)

// flashBench measures causal attention of one sequence in float32: its output, and
// the gradients of the output's sum with respect to queries, keys and values. All
// implementations are given the same operands, and must have the same results.
type flashBench struct {
	tokens  []int
	threads int
}

func newFlash() benchmark { return &flashBench{} }

func (*flashBench) name() string { return "flash" }

func (*flashBench) about() string {
	return fmt.Sprintf("causal attention, %d heads of %d, one sequence, float32", flashHeads, flashWidth)
}

func (b *flashBench) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.IntSliceVar(&b.tokens, "sizes", []int{512, 1024, 2048, 4096, 8192}, "lengths of the sequence, in tokens")
	flags.IntVar(&b.threads, "threads", 2, "threads that each implementation may use")
}

func (b *flashBench) cases() ([]testCase, error) {
	if b.threads < 1 {
		return nil, fmt.Errorf("--threads=%d: want 1 or more", b.threads)
	}
	free := freeMemory()
	var cases []testCase
	for _, backward := range []bool{false, true} {
		for _, tokens := range b.tokens {
			c := flashCase{Tokens: tokens, Heads: flashHeads, Width: flashWidth, Backward: backward}
			if tokens < 1 || tokens > flashMost {
				return nil, fmt.Errorf("--sizes: %d tokens, want 1 to %d", tokens, flashMost)
			}
			c.Fits = flashCopies*c.scores() <= free
			cases = append(cases, testCase{name: c.String(), params: c, within: flashTolerance, describe: c.describe})
		}
	}
	return cases, nil
}

func (b *flashBench) implementations() []implementation {
	env := b.env()
	return []implementation{
		{name: "flash", about: "lib/flash", role: ours, env: env, serve: flashEngine(flash.Auto).serve},
		{name: "blocks", about: "lib/flash by loops in the graph", role: variant, env: env, serve: flashEngine(flash.Blocks).serve},
		{name: "plain", about: "lib/gpt, which holds the scores of all pairs", role: variant, env: env, serve: plainAttention().serve},
		{name: "torch", about: "scaled_dot_product_attention, its flash kernel", role: peer, commands: b.peer("torch")},
		{name: "jax-naive", about: "with the scores of all pairs", role: peer, commands: b.peer("jax-naive")},
		{name: "jax-nn", about: "jax.nn.dot_product_attention", role: peer, commands: b.peer("jax-nn")},
		{name: "jax-chunked", about: "256 queries at a time, again in the backward pass", role: peer, commands: b.peer("jax-chunked")},
	}
}

// env is what all processes get. XLA has as many threads as NPROC says, in the plugin as
// in JAX. With more than one arena glibc does not give all freed memory back when it is
// asked to (mtrim in malloc.c), and what a call then takes of it would be no rise.
func (b *flashBench) env() []string {
	return []string{"NPROC=" + strconv.Itoa(b.threads), "GLIBC_TUNABLES=glibc.malloc.arena_max=1"}
}

func (b *flashBench) peer(name string) func(context.Context, place) ([]*exec.Cmd, error) {
	return func(ctx context.Context, p place) ([]*exec.Cmd, error) {
		cmd := exec.CommandContext(ctx, p.python, filepath.Join(p.scripts, "flash.py"), name, "--threads="+strconv.Itoa(b.threads))
		cmd.Env = slices.Concat(os.Environ(), []string{"JAX_PLATFORMS=cpu", "CUDA_VISIBLE_DEVICES="}, b.env())
		return []*exec.Cmd{cmd}, nil
	}
}

// charts draws the times over flash's, and lists them and the memory.
func (b *flashBench) charts(records []record) []*chart.Chart {
	var charts []*chart.Chart
	for _, c := range flashSmall {
		var lines []chart.Series
		for _, r := range records {
			if r.Op == c.op() && r.Role != ours && r.Ratio > 0 {
				lines = addPoint(lines, r.Impl, int64(r.Tokens), r.Ratio)
			}
		}
		if lines != nil {
			charts = append(charts, chart.Line(c.op(), "tokens", "time over flash's", lines...).LogX().LogY())
		}
	}
	for _, t := range b.tables(records) {
		charts = append(charts, t.chart())
	}
	return charts
}

// tables lists the times over flash's, and the memory.
func (b *flashBench) tables(records []record) []table {
	memory := func(r record) string {
		return cell("%.1f", mebibytes(r.Temporary)) + " / " + cell("%.1f", mebibytes(r.ExtraRSS))
	}
	return []table{
		pivot("Time over flash's: median (least)", records, ratioCell, variant, peer),
		pivot("Memory, MiB: temporary of the compiled program / rise of the process's peak", records, memory, ours, variant, peer),
	}
}
