package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/lib/sequence"
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
		"--tensor 1025":     "--tensor=1025",
		"--seq-parallel -1": "--seq-parallel=-1",
		"--seq-parallel 9":  "--seq-parallel=9: a sequence has --seq 8 tokens, and each device takes at least one",
		"--seq-parallel 200 --seq-method hybrid --data 1":           "--seq-parallel=200: a sequence has --seq 8 tokens",
		"--seq-parallel 16 --pipe 2":                                "--seq-parallel=16: a sequence has --seq 8 tokens",
		"--tensor 1000":                                             "--tensor=1000",
		"--seq-parallel 999999":                                     "--seq-parallel=999999",
		"--tensor 2 --data 256":                                     "multiply to 512 devices: want at most",
		"--tensor-sequence":                                         "--tensor-sequence: no devices share layers",
		"--tensor 1 --tensor-sequence":                              "--tensor-sequence: no devices share layers",
		"--tensor 2 --tensor-overlap":                               "add --tensor-sequence",
		"--seq-method ring":                                         "--seq-method: no devices share sequences",
		"--tensor 2 --seq-ulysses 2":                                "--seq-ulysses: no devices share sequences",
		"--seq-ranks":                                               "--seq-ranks: no devices share sequences",
		"--seq-parallel 2 --seq-ranks --seq-method allgather":       "it is for rings",
		"--seq-parallel 4 --seq-ranks --seq-method hybrid":          "with --seq-ulysses, the devices of a rank",
		"--seq-parallel 2 --seq-ranks --sync spmd":                  "--seq-ranks and --sync=spmd, which is one program",
		"--placement zigzag":                                        "--placement: no devices share sequences",
		"--tensor 2 --microbatches 2":                               "--microbatches: there is no pipeline",
		"--tensor 2 --offload-optimizer":                            "--offload-optimizer: updates on the host need one device per rank, not 2",
		"--tensor 2 --every 2":                                      "--every are for what goes between replicas, and there is one",
		"--tensor 2 --servers 1":                                    "--servers=1 and --sync=ranks, which has no servers",
		"--tensor 2 --compress-gradients bf16":                      "--compress-gradients and --every are for what goes between replicas",
		"--tensor 2 --sync spmd --trace file":                       "--trace: one program on all devices shows nothing",
		"--seq-parallel 2 --link 1e9":                               "--link is between ranks, and there is one, of 2 devices",
		"--tensor 2 --sync spmd --accumulate 2":                     "--accumulate and --sync=spmd, which is one program",
		"--seq-parallel 2 --sync auto":                              "--seq-parallel and --sync=auto",
		"--tensor 2 --tensor-sequence --sync auto":                  "--tensor-sequence and --sync=auto, which leaves it to the compiler",
		"--tensor 2 --data 3":                                       "--batch=8 cannot be divided into equal parts for --data 3",
		"--seq-parallel 2 --seq-method flash":                       `--seq-method=flash: want one of ["ulysses" "ring" "allgather" "hybrid"]`,
		"--seq-parallel 2 --placement spiral":                       "--placement=spiral: want one of",
		"--seq-parallel 2 --seq-method ulysses --placement striped": "--placement=striped and --seq-method=ulysses",
		"--seq-parallel 4 --seq-ulysses 2":                          "--seq-ulysses=2 and --seq-method=ring",
		"--seq-parallel 4 --seq-method hybrid --seq-ulysses 4":      "--seq-ulysses=4: want a number between 1 and --seq-parallel 4",
		"--seq-parallel 3 --seq-method ulysses":                     "which 3 devices cannot exchange evenly for tokens",
		"--seq-parallel 2 --tensor 4 --seq-method ulysses":          "which 2 devices cannot exchange evenly for tokens",
		"--seq-parallel 6 --seq-method hybrid --seq-ulysses 3":      "which 3 devices cannot exchange evenly for tokens",
		"--seq-parallel 2 --seq-method hybrid":                      "choose other numbers, or --seq-method ring",
		"--tensor 3":                                                `--tensor=3: tensor: parameter h0.qkv.w`,
		"--tensor 3 --sync auto":                                    `--tensor=3: tensor: parameter h0.qkv.w`,
		"--tensor 2 --hidden 13":                                    `--tensor=2: tensor: parameter h0.up.w`,
		"--tensor 4 --tensor-sequence --seq 10":                     "gpt: --seq is 10, of which a device has 10 tokens",
		"--tensor 2 --optimizer adam8bit":                           "the optimizer has states for blocks of tok",
		"--seq-parallel 2 --dropout 0.1":                            "--dropout is 0.1 and devices share sequences",
		"--seq-parallel 2 --precision tf32":                         "--precision sets how products are computed",
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

func TestSequenceDegrees(t *testing.T) {
	for _, c := range []struct {
		method         string
		n, given, keys int
		ring, ulysses  int // 0 is refused
	}{
		{"", 0, 0, 3, 1, 1},
		{"", 6, 0, 4, 6, 1},
		{seqGather, 3, 0, 4, 3, 1},
		{seqUlysses, 4, 0, 8, 1, 4},
		{seqUlysses, 8, 0, 4, 1, 8}, // for the model to refuse
		{seqHybrid, 4, 0, 4, 2, 2},  // below all four
		{seqHybrid, 8, 0, 8, 2, 4},
		{seqHybrid, 12, 0, 9, 4, 3},
		{seqHybrid, 12, 0, 8, 3, 4},
		{seqHybrid, 12, 2, 8, 6, 2},
		{seqHybrid, 5, 0, 5, 0, 0},
		{seqHybrid, 4, 0, 1, 0, 0},
	} {
		s := parallel{SeqParallel: c.n, SeqMethod: c.method, SeqUlysses: c.given}
		ring, ulysses, err := s.degrees(c.keys)
		if ring != c.ring || ulysses != c.ulysses || (err != nil) != (c.ring == 0) {
			t.Errorf("%+v: %d and %d, error %v", c, ring, ulysses, err)
		}
	}
}

// A layout has the devices that the flags say, and the model the axes of those that share sequences.
func TestShareLayout(t *testing.T) {
	for _, c := range []struct {
		share         parallel
		ring, ulysses int
		group         sequence.Group
	}{
		{parallel{Tensor: 2}, 1, 1, sequence.Group{}},
		{parallel{SeqParallel: 2}, 2, 1, sequence.Group{Ring: "ring", Placement: sequence.Zigzag}},
		{parallel{SeqParallel: 2, SeqMethod: seqUlysses}, 1, 2, sequence.Group{Ulysses: "ulysses"}},
		{parallel{SeqParallel: 2, SeqMethod: seqGather, Placement: sequence.Striped}, 2, 1,
			sequence.Group{Ring: "ring", Gather: true, Placement: sequence.Striped}},
		{parallel{Tensor: 2, SeqParallel: 4, SeqMethod: seqHybrid}, 2, 2,
			sequence.Group{Ring: "ring", Ulysses: "ulysses", Placement: sequence.Zigzag}},
	} {
		j := newJob()
		j.Parallel = c.share
		j.Parallel.Data = 3
		l, err := j.layout()
		if err != nil || l.Data != 3 || l.Ring != c.ring || l.Ulysses != c.ulysses || l.Tensor != c.share.Tensor || l.Ranks() != 1 {
			t.Errorf("%+v: %+v, error %v", c.share, l, err)
		}
		if got := j.Parallel.sequenceGroup(); got != c.group {
			t.Errorf("%+v: %+v, want %+v", c.share, got, c.group)
		}
	}
}

func Example_collectives() {
	fmt.Println(collectivesText([]collective{{"all-reduce", 8, 12672}, {"all-to-all", 1, 8}}))
	// Output:
	// all-reduce ×8, 12.38 KiB; all-to-all ×1, 8 B
}
