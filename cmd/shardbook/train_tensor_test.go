package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/lib/xla"
)

// A run that goes on from step to step with its layers shared, its sequences, both and neither learns what one device
// learns, but for rounding.
func TestTrainTensorSequence(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "run")
	want := oneDevice(t)
	const (
		tables = 4 * (256*16 + 8*16 + 16*256)                             // bytes of tokens, positions and head
		whole  = tables + 4*(3*2*16+16*48+16*16+16*64+64*16)              // of the model
		half   = tables/2 + 4*(8*16/2+3*2*16+(16*48+16*16+16*64+64*16)/2) // of one of two that share layers
	)
	sum, gather, scatter := xla.AllReduce, xla.AllGather, xla.ReduceScatter
	exchange, permute := xla.AllToAll, xla.Permute
	for i, way := range []struct {
		args       string
		parameters int64
		counts     map[xla.CollectiveKind]int // a Group that asks for its rank exchanges numbers once besides
	}{
		// Two pairs of layers in a block, forward and backward, and one collective for each of the two tables. The
		// backward passes of the pairs and the head repeat their gathers.
		{"--data 2 --tensor 2 --tensor-sequence", half, map[xla.CollectiveKind]int{gather: 6 + 3, scatter: 6,
			exchange: 1}},
		{"--tensor 1 --data 1", whole, map[xla.CollectiveKind]int{}},
		{"--seq-parallel 2 --seq-method allgather --placement striped --data 2", whole,
			map[xla.CollectiveKind]int{sum: 1,
				gather: 2, scatter: 2, exchange: 1}},
		{"--seq-parallel 4 --seq-method Hybrid --data 1", whole, map[xla.CollectiveKind]int{sum: 1, exchange: 2 + 8,
			permute: 1 + 3}},
		{"--tensor 2 --sync auto", half, nil},
		{"--tensor 2 --seq-parallel 2 --sample 3 --temperature 0", half,
			map[xla.CollectiveKind]int{exchange: 2, permute: 1 +
				3}},
	} {
		run, to := []string{"train", "--resume", "--checkpoint", folder}, i+1
		switch i {
		case 0:
			run = append(slices.Clone(together), "--checkpoint", folder)
		case 5:
			to = 8
		}
		r := goesOn(t, want, i, to, append(run, strings.Fields(way.args)...)...)
		if m := r.BytesPerDevice; m["parameters"] != way.parameters || m["optimizer"] != way.parameters ||
			m["temporary"] <= 0 {
			t.Errorf("%s: memory %v, want %d bytes of parameters", way.args, m, way.parameters)
		}
		if (len(r.Collectives) == 0) != (i == 1) {
			t.Errorf("%s: collectives %v", way.args, r.Collectives)
		}
		for kind, n := range way.counts {
			if !slices.ContainsFunc(r.Collectives, func(c collective) bool {
				return c.Kind == kind.String() && c.Count == n &&
					c.Bytes > 0
			}) {
				t.Errorf("%s: collectives %v, want %d of %s", way.args, r.Collectives, n, kind)
			}
		}
		if i == 5 && r.Text != want.Text {
			t.Errorf("%s: the text is %q, of one device %q", way.args, r.Text, want.Text)
		}
	}
}

func Example_collectives() {
	fmt.Println(collectivesText([]collective{{"all-reduce", 8, 12672}, {"all-to-all", 1, 8}}))
	// Output:
	// all-reduce ×8, 12.38 KiB; all-to-all ×1, 8 B
}
