package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// collectives measures the collective operations. Sizes, times and bandwidths are those of nccl-tests
// (doc/PERFORMANCE.md): the bytes of an operation are those of the larger of a rank's two buffers, its time is that of
// the slowest rank, after a barrier; the algorithm bandwidth is bytes over time, and the bus bandwidth is that times a
// factor which makes different numbers of ranks comparable.
type collectives struct {
	ops   []string
	sizes []int64
	ranks int
}

func newCollectives() *benchmark {
	var b collectives
	return &benchmark{
		name:            "collectives",
		about:           "all-reduce and other collectives between ranks of one machine, float32",
		flags:           b.flags,
		cases:           b.cases,
		implementations: b.implementations,
	}
}

func (b *collectives) flags(flags *pflag.FlagSet) {
	flags.StringSliceVar(&b.ops, "ops", slices.Clone(collectiveOps), "operations")
	flags.Int64SliceVar(&b.sizes, "sizes", []int64{4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20}, "sizes in bytes")
	flags.IntVar(&b.ranks, "ranks", 4, "number of ranks")
}

func (b *collectives) cases() ([]testCase, error) {
	if b.ranks < 2 {
		return nil, fmt.Errorf("--ranks=%d: want 2 or more", b.ranks)
	}
	// Each rank has two buffers, and so have those it is compared with.
	free := freeMemory() / 4 / int64(b.ranks)
	var cases []testCase
	for _, op := range b.ops {
		if !slices.Contains(collectiveOps, op) {
			return nil, fmt.Errorf("--ops: no operation %q, want some of %s", op, strings.Join(collectiveOps, ","))
		}
		for _, size := range b.sizes {
			if size > free {
				return nil, fmt.Errorf("--sizes: %s for %d ranks do not fit into the free memory: want at most %s",
					sizeText(size), b.ranks, sizeText(free>>20<<20))
			}
			if size < 1 || size%int64(4*b.ranks) != 0 {
				return nil, fmt.Errorf(
					"--sizes: %d bytes do not give %d ranks equal parts of float32: want a multiple of %d", size,
					b.ranks, 4*b.ranks)
			}
			c := collectiveCase{Op: op, Bytes: size, Ranks: b.ranks}
			cases = append(cases, testCase{name: op + " " + sizeText(size), params: c, describe: c.describe})
		}
	}
	return cases, nil
}

// sizeText writes a size with the largest unit that divides it.
func sizeText(bytes int64) string {
	units := []string{"B", "KiB", "MiB", "GiB"}
	for bytes > 0 && bytes%1024 == 0 && len(units) > 1 {
		bytes, units = bytes/1024, units[1:]
	}
	return fmt.Sprintf("%d %s", bytes, units[0])
}

func (c collectiveCase) describe(r *record) {
	r.Op, r.Bytes, r.Ranks = c.Op, c.Bytes, c.Ranks
	bandwidth := float64(c.Bytes) / (r.MedianMS * 1e6) // GB/s
	r.AlgBW, r.BusBW = round(bandwidth), round(bandwidth*c.busFactor())
}

func (b *collectives) implementations() []implementation {
	ranks := "--ranks=" + strconv.Itoa(b.ranks)
	args, keep := []string{ranks}, []string{keepMemory}
	jax := func(env []string, options ...string) commands {
		return python(append([]string{jaxDevices(b.ranks)}, env...), "collectives.py", append([]string{"jax", ranks},
			options...)...)
	}
	return []implementation{
		{name: "group", about: "lib/collective/group between goroutines", role: ours, args: args, serve: b.serveGroup},
		{name: "group-ring", about: "the same ranks, running the ring's plan", role: ours, args: args,
			serve: b.serveRing},
		{name: "xla", about: "lib/collective in a graph on XLA's CPU devices", role: ours, args: args,
			serve: b.serveXLA(1)},
		{name: "xla-8", about: "the same, 8 in one program, or fewer if they are large", role: ours, args: args,
			serve: b.serveXLA(8)},
		{name: "mpi", about: "lib/collective/mpi between processes", role: ours, processes: b.ranks, serve: serveMPI,
			commands: mpiSelf(b.ranks, "self,vader", nil, "collectives", "--worker=mpi")},
		{name: "memory-copy", about: "memcpy, a thread a core", role: limit, serve: serveMemory(copyLoop)},
		{name: "memory-negate", about: "a = -a in four stretches, a thread a core", role: limit,
			serve: serveMemory(negateLoop)},
		{name: "memory-add", about: "a += b, a thread a core", role: limit, serve: serveMemory(addLoop)},
		{name: "gloo", about: "torch.distributed between processes", role: peer,
			commands: torchProcesses(b.ranks, "collectives.py", "gloo")},
		{name: "openmpi", about: "Open MPI by mpi4py", role: peer, processes: b.ranks,
			commands: func(ctx context.Context, p place) ([]*exec.Cmd, error) {
				return mpirun(ctx, b.ranks, "self,vader", nil, p.python, filepath.Join(p.scripts, "collectives.py"),
					"mpi")
			}},
		{name: "jax", about: "JAX's virtual devices", role: peer, commands: jax(nil)},
		{name: "jax-malloc", about: "the same, with glibc told to keep freed memory", role: peer, commands: jax(keep)},
		{name: "jax-donate", about: "and with its input donated, where the result is as large", role: peer,
			commands: jax(keep, "--donate")},
	}
}

// jaxDevices gives JAX n devices of the host.
func jaxDevices(n int) string {
	return "XLA_FLAGS=--xla_force_host_platform_device_count=" + strconv.Itoa(n)
}

// keepMemory has glibc hand freed memory out again instead of giving it back to the
// system, whose fresh pages cost XLA more than a collective itself.
const keepMemory = "GLIBC_TUNABLES=glibc.malloc.mmap_max=0:glibc.malloc.arena_max=1:" +
	"glibc.malloc.trim_threshold=17179869184"
