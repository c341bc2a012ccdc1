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
	"github.com/shardbook/shardbook/lib/zero"
)

// zeroMemory measures what a device needs beside its part of the state when all of the
// state is split: the temporary memory of a compiled step of a stack of equal blocks. It
// should grow by a device's part of a block's gradients for each block, and by nothing
// else: whole weights and whole gradients are there of a few blocks at a time.
type zeroMemory struct {
	depths []int
	width  int
}

func newZeroMemory() benchmark { return &zeroMemory{} }

func (*zeroMemory) name() string { return "zero-memory" }

func (*zeroMemory) about() string {
	return fmt.Sprintf("the temporary memory of a step of a deep stack, its state split over %d devices, float32", stackDevices)
}

func (*zeroMemory) untimed() {}

const (
	stackDevices = 4

	// stackRows is the batch: so small that what the blocks make is small beside their weights.
	stackRows = 8

	// stackTolerance is how far apart losses may be, which are in the tens: rounding shows
	// in their sixth digit after four steps.
	stackTolerance = 1e-3

	// stackMost bounds what may be asked for.
	stackMost = 1 << 12
)

func (b *zeroMemory) flags(cmd *cobra.Command) {
	cmd.Flags().IntSliceVar(&b.depths, "layers", []int{4, 8, 16, 32}, "numbers of blocks")
	cmd.Flags().IntVar(&b.width, "d", 256, "features")
}

func (b *zeroMemory) cases() (cases []testCase, err error) {
	if b.width < 1 || b.width > stackMost || b.width%stackDevices != 0 {
		return nil, fmt.Errorf("--d=%d: want a multiple of %d, at most %d", b.width, stackDevices, stackMost)
	}
	for _, depth := range b.depths {
		if depth < 1 || depth > stackMost {
			return nil, fmt.Errorf("--layers: %d blocks, want 1 to %d", depth, stackMost)
		}
		c := stackCase{Depth: depth, Width: b.width, Rows: stackRows}
		cases = append(cases, testCase{name: c.String(), params: c, within: stackTolerance, describe: c.describe})
	}
	return cases, nil
}

func (*zeroMemory) implementations() []implementation {
	return []implementation{
		{name: "zero3", about: "stage 3, one program", role: ours, serve: serveStack(startZero(zero.Options{Stage: 3}))},
		{name: "jax-fsdp", about: "the same state split, block after block", role: peer, commands: stackPeer()},
		{name: "jax-fsdp-scan", about: "the same, in jax.lax.scan over jax.checkpoint", role: peer, commands: stackPeer("--scan")},
	}
}

func stackPeer(args ...string) func(context.Context, place) ([]*exec.Cmd, error) {
	return func(ctx context.Context, p place) ([]*exec.Cmd, error) {
		cmd := exec.CommandContext(ctx, p.python, append([]string{filepath.Join(p.scripts, "zero.py"), "--devices=" + strconv.Itoa(stackDevices)}, args...)...)
		cmd.Env = append(os.Environ(), "JAX_PLATFORMS=cpu", "CUDA_VISIBLE_DEVICES=", jaxDevices(stackDevices))
		return []*exec.Cmd{cmd}, nil
	}
}

// charts draws the temporary memory beside what there must be of it.
func (b *zeroMemory) charts(records []record) []*chart.Chart {
	var lines []chart.Series
	var drawn []int
	for _, r := range records {
		if !slices.Contains(drawn, r.Depth) {
			drawn = append(drawn, r.Depth)
			lines = addPoint(lines, gradientsOf, int64(r.Depth), float64(r.GradientBytes)/(1<<10))
		}
		lines = addPoint(lines, r.Impl, int64(r.Depth), float64(r.Temporary)/(1<<10))
	}
	var charts []*chart.Chart
	for _, t := range b.tables(records) {
		charts = append(charts, t.chart())
	}
	return append(charts, chart.Line("Temporary memory of a step on each device", "blocks", "KiB", lines...))
}

// gradientsOf names what there must be on each device beside its part of the state.
const gradientsOf = "a device's gradients"

// tables lists the temporary memory beside what there must be of it.
func (*zeroMemory) tables(records []record) []table {
	temporary := func(r record) string { return kibibytes(r.Temporary) }
	t := pivot("Temporary memory of a step on each device, KiB", records, temporary, ours, peer)
	t.header = slices.Insert(t.header, 1, "a block's weights", gradientsOf)
	for i, row := range t.rows {
		k := slices.IndexFunc(records, func(r record) bool { return r.Case == row[0] })
		t.rows[i] = slices.Insert(row, 1, kibibytes(records[k].BlockBytes), kibibytes(records[k].GradientBytes))
	}
	return []table{t}
}

func kibibytes(bytes int64) string { return cell("%.0f", float64(bytes)/(1<<10)) }
