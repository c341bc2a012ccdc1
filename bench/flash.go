package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/shardbook/shardbook/lib/flash"
	"github.com/shardbook/shardbook/lib/gpt"
)

// flashBench measures causal attention of one sequence in float32: its output, and
// the gradients of the output's sum with respect to queries, keys and values. All
// implementations are given the same operands, and must have the same results.
type flashBench struct {
	tokens  []int
	threads int
}

func newFlash() *benchmark {
	var b flashBench
	return &benchmark{name: "flash",
		about: fmt.Sprintf("causal attention, %d heads of %d, one sequence, float32", flashHeads, flashWidth),
		flags: b.flags, cases: b.cases, implementations: b.implementations}
}

func (b *flashBench) flags(flags *pflag.FlagSet) {
	flags.IntSliceVar(&b.tokens, "sizes", []int{512, 1024, 2048, 4096, 8192}, "lengths of the sequence, in tokens")
	flags.IntVar(&b.threads, "threads", 2, "threads of each implementation")
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
	// XLA has as many threads as NPROC says, in the plugin as in JAX. With more than one arena glibc does not give all
	// freed memory back when it is asked to (mtrim in malloc.c), and the rise of a call would be too small.
	threads := strconv.Itoa(b.threads)
	env := []string{"NPROC=" + threads, "GLIBC_TUNABLES=glibc.malloc.arena_max=1"}
	peerOf := func(name string) commands { return python(env, "flash.py", name, "--threads="+threads) }
	return []implementation{
		{name: "flash", about: "lib/flash", role: ours, env: env, serve: flashEngine(flash.Auto).serve},
		{name: "blocks", about: "lib/flash by loops in the graph", role: variant, env: env,
			serve: flashEngine(flash.Blocks).serve},
		{name: "plain", about: "lib/gpt, which holds the scores of all pairs", role: variant, env: env,
			serve: flashXLA{attention: gpt.CausalAttention, holdsScores: true}.serve},
		{name: "torch", about: "scaled_dot_product_attention, its flash kernel", role: peer, commands: peerOf("torch")},
		{name: "jax-naive", about: "with the scores of all pairs", role: peer, commands: peerOf("jax-naive")},
		{name: "jax-nn", about: "jax.nn.dot_product_attention", role: peer, commands: peerOf("jax-nn")},
		{name: "jax-chunked", about: "256 queries at a time, recomputed in the backward pass", role: peer,
			commands: peerOf("jax-chunked")},
	}
}
