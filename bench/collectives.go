package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shardbook/shardbook/lib/chart"
)

// collectives measures the collective operations. Sizes, times and bandwidths are
// those of nccl-tests (doc/PERFORMANCE.md): the bytes of an operation are those of
// the larger of a rank's two buffers, its time is that of the slowest rank, after a
// barrier; the algorithm bandwidth is bytes over time, and the bus bandwidth is
// that times a factor which makes different numbers of ranks comparable.
type collectives struct {
	ops   []string
	sizes sizes
	ranks int
}

func newCollectives() benchmark { return &collectives{} }

func (*collectives) name() string { return "collectives" }

func (*collectives) about() string {
	return "all-reduce and its kin between ranks of one machine, float32"
}

func (b *collectives) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringSliceVar(&b.ops, "ops", slices.Clone(collectiveOps), "operations")
	b.sizes.bytes = []int64{4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20}
	flags.Var(&b.sizes, "sizes", "sizes, in bytes or as 64KiB, 1MiB")
	flags.IntVar(&b.ranks, "ranks", 4, "number of ranks")
}

func (b *collectives) cases() ([]testCase, error) {
	if b.ranks < 2 {
		return nil, fmt.Errorf("--ranks=%d: want 2 or more", b.ranks)
	}
	// All ranks have two buffers, and so does what they are compared with.
	free := freeMemory() / 4 / int64(b.ranks)
	var cases []testCase
	for _, op := range b.ops {
		if !slices.Contains(collectiveOps, op) {
			return nil, fmt.Errorf("--ops: no operation %q, want some of %s", op, strings.Join(collectiveOps, ","))
		}
		for _, size := range b.sizes.bytes {
			if size > free {
				return nil, fmt.Errorf("--sizes: %s for %d ranks do not fit into the free memory: want at most %s", sizeText(size), b.ranks,
					sizeText(free>>20<<20))
			}
			if size < 1 || size%int64(4*b.ranks) != 0 {
				return nil, fmt.Errorf("--sizes: %d bytes do not give %d ranks equal parts of float32: want a multiple of %d", size, b.ranks, 4*b.ranks)
			}
			c := collectiveCase{Op: op, Bytes: size, Ranks: b.ranks}
			cases = append(cases, testCase{name: op + " " + sizeText(size), params: c, describe: c.describe})
		}
	}
	return cases, nil
}

func (c collectiveCase) describe(r *record) {
	r.Op, r.Bytes, r.Ranks = c.Op, c.Bytes, c.Ranks
	bandwidth := float64(c.Bytes) / (r.MedianMS * 1e6) // GB/s
	r.AlgBW, r.BusBW = round(bandwidth), round(bandwidth*c.busFactor())
}

func (b *collectives) implementations() []implementation {
	args := []string{"--ranks=" + strconv.Itoa(b.ranks)}
	keep := []string{keepMemory}
	return []implementation{
		{name: "group", about: "lib/collective/group between goroutines", role: ours, args: args, serve: b.serveGroup},
		{name: "group-ring", about: "the same ranks, running the ring's plan", role: ours, args: args, serve: b.serveRing},
		{name: "xla", about: "lib/collective in a graph on XLA's CPU devices", role: ours, args: args, serve: b.serveXLA},
		{name: "xla-malloc", about: "the same, with glibc told to keep freed memory", role: ours, args: args, env: keep, serve: b.serveXLA},
		{name: "mpi", about: "lib/collective/mpi between processes", role: ours, processes: b.ranks, commands: b.mpi, serve: serveMPI},
		{name: "memory-copy", about: "memcpy, a thread a core", role: limit, serve: serveMemory(copyKernel)},
		{name: "memory-negate", about: "a = -a in four stretches, a thread a core", role: limit, serve: serveMemory(negateKernel)},
		{name: "memory-add", about: "a += b, a thread a core", role: limit, serve: serveMemory(addKernel)},
		{name: "gloo", about: "torch.distributed between processes", role: peer, processes: b.ranks, commands: b.gloo},
		{name: "openmpi", about: "Open MPI by mpi4py", role: peer, processes: b.ranks, commands: b.openMPI},
		{name: "jax", about: "JAX's virtual devices", role: peer, commands: b.jax(nil)},
		{name: "jax-malloc", about: "the same, with glibc told to keep freed memory", role: peer, commands: b.jax(keep)},
		{name: "jax-donate", about: "and with its input given up, where the result is as large", role: peer, commands: b.jax(keep, "--donate")},
	}
}

// gloo starts a process for each rank. They find each other by a file.
func (b *collectives) gloo(ctx context.Context, p place) ([]*exec.Cmd, error) {
	var commands []*exec.Cmd
	for rank := range b.ranks {
		cmd := exec.CommandContext(ctx, p.python, filepath.Join(p.scripts, "collectives.py"), "gloo",
			"--rank="+strconv.Itoa(rank), "--ranks="+strconv.Itoa(b.ranks), "--store="+filepath.Join(p.dir, "gloo"))
		cmd.Env = append(os.Environ(), "GLOO_SOCKET_IFNAME="+loopback(), "OMP_NUM_THREADS=1", "CUDA_VISIBLE_DEVICES=")
		commands = append(commands, cmd)
	}
	return commands, nil
}

func (b *collectives) openMPI(ctx context.Context, p place) ([]*exec.Cmd, error) {
	cmd, err := mpirun(ctx, b.ranks, "self,vader", p.python, filepath.Join(p.scripts, "collectives.py"), "mpi")
	return []*exec.Cmd{cmd}, err
}

func (b *collectives) mpi(ctx context.Context, p place) ([]*exec.Cmd, error) {
	cmd, err := mpiSelf(ctx, p, b.ranks, "self,vader", b.name(), "--worker=mpi")
	return []*exec.Cmd{cmd}, err
}

func (b *collectives) jax(env []string, options ...string) func(context.Context, place) ([]*exec.Cmd, error) {
	return func(ctx context.Context, p place) ([]*exec.Cmd, error) {
		ranks := strconv.Itoa(b.ranks)
		args := append([]string{filepath.Join(p.scripts, "collectives.py"), "jax", "--ranks=" + ranks}, options...)
		cmd := exec.CommandContext(ctx, p.python, args...)
		cmd.Env = append(os.Environ(), "JAX_PLATFORMS=cpu", "XLA_FLAGS=--xla_force_host_platform_device_count="+ranks)
		cmd.Env = append(cmd.Env, env...)
		return []*exec.Cmd{cmd}, nil
	}
}

// keepMemory has glibc hand freed memory out again instead of giving it back to the
// system, whose fresh pages cost XLA more than a collective itself.
const keepMemory = "GLIBC_TUNABLES=glibc.malloc.mmap_max=0:glibc.malloc.arena_max=1:glibc.malloc.trim_threshold=17179869184"

// charts draws the group's ratios, and the bus bandwidths of each operation.
func (b *collectives) charts(records []record) []*chart.Chart {
	var ratios []chart.Series
	var charts []*chart.Chart
	for _, op := range b.ops {
		var bandwidths []chart.Series
		for _, r := range records {
			if r.Op != op {
				continue
			}
			name := r.Impl
			if r.Role == limit {
				name = "limit"
			}
			bandwidths = addPoint(bandwidths, name, r.Bytes, r.BusBW)
			if r.Impl == "group" && r.Ratio > 0 {
				ratios = addPoint(ratios, op, r.Bytes, r.Ratio)
			}
		}
		if bandwidths != nil {
			charts = append(charts, chart.Line(op, "bytes", "bus bandwidth (GB/s)", bandwidths...).LogX().LogY())
		}
	}
	if ratios == nil {
		return charts
	}
	ratio := chart.Line("group against the best peer", "bytes", "best peer's time / ours (median of pairs)", ratios...).LogX().LogY()
	return append([]*chart.Chart{ratio}, charts...)
}

// addPoint adds a point to the series of that name. Of several limits at one size
// the highest counts.
func addPoint(lines []chart.Series, name string, bytes int64, y float64) []chart.Series {
	i := slices.IndexFunc(lines, func(s chart.Series) bool { return s.Name == name })
	if i < 0 {
		i = len(lines)
		lines = append(lines, chart.Series{Name: name})
	}
	line := &lines[i]
	if last := len(line.X) - 1; last >= 0 && line.X[last] == float64(bytes) {
		line.Y[last] = max(line.Y[last], y)
		return lines
	}
	line.X, line.Y = append(line.X, float64(bytes)), append(line.Y, y)
	return lines
}
