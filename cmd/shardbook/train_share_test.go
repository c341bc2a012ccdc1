package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/lib/xla"
)

// A run that goes on from step to step with its layers shared, its sequences, both and neither learns what one device learns,
// but for rounding.
func TestTrainShared(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "run")
	want := oneDevice(t)
	const (
		tables = 4 * (256*16 + 8*16 + 16*256)                             // bytes of tokens, positions and head
		whole  = tables + 4*(3*2*16+16*48+16*16+16*64+64*16)              // of the model
		half   = tables/2 + 4*(8*16/2+3*2*16+(16*48+16*16+16*64+64*16)/2) // of one of two that share layers
	)
	sum, gather, scatter, exchange, permute := xla.AllReduce, xla.AllGather, xla.ReduceScatter, xla.AllToAll, xla.Permute
	for i, way := range []struct {
		args       string
		parameters int64
		counts     map[xla.CollectiveKind]int // a Group that asks for its rank exchanges numbers once besides
	}{
		// Of a block two pairs of layers, forwards and backwards, and of the two tables one each; what the pairs and the head
		// gathered, they gather again.
		{"--data 2 --tensor 2 --tensor-sequence", half, map[xla.CollectiveKind]int{gather: 6 + 3, scatter: 6, exchange: 1}},
		{"--tensor 1 --data 1", whole, map[xla.CollectiveKind]int{}},
		{"--seq-parallel 2 --seq-method allgather --placement striped --data 2", whole, map[xla.CollectiveKind]int{sum: 1, gather: 2, scatter: 2, exchange: 1}},
		{"--seq-parallel 4 --seq-method Hybrid --data 1", whole, map[xla.CollectiveKind]int{sum: 1, exchange: 2 + 8, permute: 1 + 3}},
		{"--tensor 2 --sync auto", half, nil},
		{"--tensor 2 --seq-parallel 2 --sample 3 --temperature 0", half, map[xla.CollectiveKind]int{exchange: 2, permute: 1 + 3}},
	} {
		run, to := []string{"train", "--resume", "--checkpoint", folder}, i+1
		switch i {
		case 0:
			run = append(slices.Clone(together), "--checkpoint", folder)
		case 5:
			to = 8
		}
		r := goesOn(t, want, i, to, append(run, strings.Fields(way.args)...)...)
		if m := r.BytesPerDevice; m["parameters"] != way.parameters || m["optimizer"] != way.parameters || m["temporary"] <= 0 {
			t.Errorf("%s: memory %v, want %d bytes of parameters", way.args, m, way.parameters)
		}
		if (len(r.Collectives) == 0) != (i == 1) {
			t.Errorf("%s: collectives %v", way.args, r.Collectives)
		}
		for kind, n := range way.counts {
			if !slices.ContainsFunc(r.Collectives, func(c collective) bool { return c.Kind == kind.String() && c.Count == n && c.Bytes > 0 }) {
				t.Errorf("%s: collectives %v, want %d of %s", way.args, r.Collectives, n, kind)
			}
		}
		if i == 5 && r.Text != want.Text {
			t.Errorf("%s: the text is %q, of one device %q", way.args, r.Text, want.Text)
		}
	}
}

func TestTrainShareRefuses(t *testing.T) {
	for args, want := range map[string]string{
		"--tensor -1":       "--tensor=-1",
		"--tensor 1025":     "has 1025 devices: want at most 256",
		"--seq-parallel -1": "--seq-parallel=-1: want at least 0",
		"--seq-parallel 9":  "--seq-parallel=9: a sequence has --seq 8 tokens, and each device takes at least one",
		"--seq-parallel 200 --seq-method hybrid --data 1":           "--seq-parallel=200: a sequence has --seq 8 tokens",
		"--seq-parallel 16 --pipe 2":                                "--seq-parallel=16: a sequence has --seq 8 tokens",
		"--tensor 1000":                                             "has 1000 devices: want at most 256",
		"--seq-parallel 999999":                                     "--seq-parallel=999999",
		"--tensor 2 --data 256":                                     "has 512 devices: want at most 256",
		"--tensor-sequence":                                         "--tensor-sequence=true changes nothing without --tensor",
		"--tensor 1 --tensor-sequence":                              "--tensor-sequence=true changes nothing without --tensor",
		"--tensor 2 --tensor-overlap":                               "--tensor-overlap=true changes nothing without --tensor-sequence",
		"--seq-method ring":                                         "--seq-method=ring changes nothing without --seq-parallel",
		"--tensor 2 --seq-ulysses 2":                                "--seq-ulysses=2 changes nothing without --seq-parallel",
		"--seq-ranks":                                               "--seq-ranks=true changes nothing without --seq-parallel",
		"--seq-parallel 2 --seq-ranks --seq-method allgather":       "it is for rings",
		"--seq-parallel 4 --seq-ranks --seq-method hybrid":          "with --seq-ulysses, the devices of a rank",
		"--seq-parallel 2 --seq-ranks --sync spmd":                  "--seq-ranks and --sync=spmd, which is one program",
		"--placement zigzag":                                        "--placement=zigzag changes nothing without --seq-parallel",
		"--tensor 2 --microbatches 2":                               "--microbatches=2 changes nothing without --pipe",
		"--tensor 2 --offload-optimizer":                            "--offload-optimizer: the host updates for a rank of 2 devices",
		"--tensor 2 --every 2":                                      "--every are for what goes between replicas, and there is one",
		"--tensor 2 --servers 1":                                    "--servers=1 and --sync=ranks, which has no servers",
		"--tensor 2 --compress-gradients bf16":                      "--compress-gradients and --every are for what goes between replicas",
		"--tensor 2 --sync spmd --trace file":                       "--trace: one program on all devices shows nothing",
		"--seq-parallel 2 --link 1e9":                               "--link is between ranks, and there is one, of 2 devices",
		"--tensor 2 --sync spmd --accumulate 2":                     "--accumulate and --sync=spmd, which is one program",
		"--seq-parallel 2 --sync auto":                              "--seq-parallel and --sync=auto",
		"--tensor 2 --tensor-sequence --sync auto":                  "--tensor-sequence and --sync=auto, which leaves communication to the compiler",
		"--tensor 2 --data 3":                                       "--batch: a batch of 8 sequences for 3 data-parallel devices",
		"--seq-parallel 2 --seq-method flash":                       `"flash" for "--seq-method" flag: want one of ring, ulysses, allgather, hybrid`,
		"--seq-parallel 2 --placement spiral":                       `"spiral" for "--placement" flag: want one of`,
		"--seq-parallel 2 --seq-method ulysses --placement striped": "--placement: tokens are placed striped on no ring: choose --seq-method ring",
		"--seq-parallel 4 --seq-ulysses 2":                          "--seq-ulysses is 2 with --seq-method ring",
		"--seq-parallel 4 --seq-method hybrid --seq-ulysses 4":      "--seq-ulysses is 4 of 4 devices that share sequences: choose a divisor",
		"--seq-parallel 3 --seq-method ulysses":                     "which 3 devices cannot exchange evenly for tokens",
		"--seq-parallel 2 --tensor 4 --seq-method ulysses":          "which 2 devices cannot exchange evenly for tokens",
		"--seq-parallel 6 --seq-method hybrid --seq-ulysses 3":      "which 3 devices cannot exchange evenly for tokens",
		"--seq-parallel 2 --seq-method hybrid":                      "choose other numbers, or --seq-method ring",
		"--tensor 3":                                                `--tensor=3: tensor: parameter h0.qkv.w`,
		"--tensor 3 --sync auto":                                    `--tensor=3: tensor: parameter h0.qkv.w`,
		"--tensor 2 --hidden 13":                                    `--tensor=2: tensor: parameter h0.up.w`,
		"--tensor 4 --tensor-sequence --seq 10":                     "gpt: --seq is 10, of which a device has 10 tokens",
		"--tensor 2 --optimizer adam8bit":                           "the optimizer keeps numbers of blocks of tok",
		"--seq-parallel 2 --dropout 0.1":                            "--dropout is 0.1 with sequence parallelism",
		"--seq-parallel 2 --precision tf32":                         "--precision is set with",
	} {
		cmd := newCommand()
		var out strings.Builder
		cmd.SetOut(&out)
		cmd.SetArgs(slices.Concat(small, []string{"--steps", "1", "--batch", "8"}, strings.Fields(args)))
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") || out.Len() > 0 {
			t.Errorf("%s: printed %q, error %v, want %q in one sentence", args, out.String(), err, want)
		}
	}
}

func Example_collectives() {
	fmt.Println(collectivesText([]collective{{"all-reduce", 8, 12672}, {"all-to-all", 1, 8}}))
	// Output:
	// all-reduce ×8, 12.38 KiB; all-to-all ×1, 8 B
}
