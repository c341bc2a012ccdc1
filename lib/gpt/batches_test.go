package gpt_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/gpt"
)

// numbered returns a text in which any two bytes identify their offset, for fewer than 40000 bytes.
func numbered(n int) []byte {
	text := make([]byte, n)
	for i := range text {
		text[i] = byte(i / 2 % 200)
		if i%2 == 1 {
			text[i] = byte(200 + i/400)
		}
	}
	return text
}

// rows returns the sequences of tokens as strings of bytes.
func rows(x *tensors.Tensor) []string {
	flat, seq := tensors.MustCopyFlatData[int32](x), x.Shape().Dim(1)
	var out []string
	for row := range slices.Chunk(flat, seq) {
		b := make([]byte, seq)
		for i, v := range row {
			b[i] = byte(v)
		}
		out = append(out, string(b))
	}
	return out
}

// Every window of the text appears exactly once in each epoch, for any batch size, and every byte except the first is a
// target.
func TestEpochsCoverTheText(t *testing.T) {
	for _, size := range []int{6, 7, 10, 11, 26, 100, 101, 333, 1024, 20001} {
		for _, batch := range []int{1, 2, 3, 8} {
			const seq = 5
			text := numbered(size)
			corpus := gpt.Corpus{Name: "numbered", Text: text, Seed: uint64(size)}
			b, err := corpus.Batches(gpt.Config{Layers: 1, Width: 1, Heads: 1, Seq: seq, Vocab: 256}, batch)
			if err != nil {
				t.Fatal(err)
			}
			want := make(map[string]bool) // the windows, each with its last target
			for at := 0; at < size-1; at += seq {
				from := min(at, size-1-seq)
				want[string(text[from:from+seq+1])] = true
			}
			if b.Windows() != len(want) {
				t.Fatalf("%d bytes: %d windows, want %d", size, b.Windows(), len(want))
			}
			var drawn []string
			for step := 0; len(drawn) < 3*len(want); step++ {
				in, out, err := b.Step(step)
				if err != nil {
					t.Fatal(err)
				}
				ins, outs := rows(in), rows(out)
				for r := range ins {
					if ins[r][1:] != outs[r][:seq-1] {
						t.Fatalf("targets %q are not inputs %q one byte on", outs[r], ins[r])
					}
					drawn = append(drawn, ins[r]+outs[r][seq-1:])
				}
			}
			var orders []string
			for epoch := range 3 {
				windows := drawn[epoch*len(want) : (epoch+1)*len(want)]
				seen := make(map[string]bool)
				for _, w := range windows {
					if !want[w] || seen[w] {
						t.Fatalf("%d bytes, batch %d, epoch %d: %q is not a window, or comes twice", size, batch, epoch,
							w)
					}
					seen[w] = true
				}
				orders = append(orders, fmt.Sprint(windows))
			}
			if len(want) > 10 && (orders[0] == orders[1] || orders[1] == orders[2]) {
				t.Errorf("%d bytes: two epochs have the same order", size)
			}
		}
	}
}

// The ranks' shards, one after another, are the batch of one device: for the text's own order and the reference's.
func TestRanksShareTheBatch(t *testing.T) {
	config := gpt.Config{Layers: 1, Width: 1, Heads: 1, Seq: 7, Vocab: 256}
	for _, corpus := range []gpt.Corpus{gpt.Reference(), {Name: "numbered", Text: numbered(1000)}} {
		for _, batch := range []int{12, 16, 40} {
			b, err := corpus.Batches(config, batch)
			if err != nil {
				t.Fatal(err)
			}
			for world := 1; world <= 8; world++ {
				for step := range 5 {
					wantIn, wantOut, err := b.Step(step)
					if err != nil {
						t.Fatal(err)
					}
					var in, out []string
					for rank := range world {
						i, o, err := b.Rank(step, rank, world)
						if batch%world != 0 {
							if err == nil || !strings.Contains(err.Error(), "cannot be split") {
								t.Fatalf("batch %d, world %d: error %v", batch, world, err)
							}
							continue
						}
						if err != nil {
							t.Fatal(err)
						}
						in, out = append(in, rows(i)...), append(out, rows(o)...)
					}
					if batch%world == 0 && (!slices.Equal(in, rows(wantIn)) || !slices.Equal(out, rows(wantOut))) {
						t.Fatalf("%s, batch %d, world %d, step %d: the ranks' rows are not the batch", corpus.Name,
							batch, world, step)
					}
				}
			}
		}
	}
}

func TestSeedsDiffer(t *testing.T) {
	config := gpt.Config{Layers: 1, Width: 1, Heads: 1, Seq: 4, Vocab: 256}
	orders := make(map[string]uint64)
	for seed := range uint64(20) {
		b, err := gpt.Corpus{Text: numbered(400), Seed: seed}.Batches(config, 100)
		if err != nil {
			t.Fatal(err)
		}
		in, _, err := b.Step(0)
		if err != nil {
			t.Fatal(err)
		}
		order := fmt.Sprint(rows(in))
		if other, ok := orders[order]; ok {
			t.Errorf("seeds %d and %d give the same order", other, seed)
		}
		orders[order] = seed
	}
}

func TestReferenceBatches(t *testing.T) {
	for _, c := range []gpt.Config{
		gpt.ReferenceConfig(),
		{Layers: 1, Width: 1, Heads: 1, Seq: 3, Vocab: 128},
		{Layers: 1, Width: 1, Heads: 1, Seq: 1000, Vocab: 128}, // longer than the text
	} {
		for _, batch := range []int{1, 5, 16} {
			b, err := gpt.Reference().Batches(c, batch)
			if err != nil {
				t.Fatal(err)
			}
			for _, step := range []int{0, 1, 77} {
				in, out, err := b.Step(step)
				if err != nil {
					t.Fatal(err)
				}
				wantIn, wantOut := plainBatch(c, batch, step)
				if !in.Equal(tensors.FromValue(wantIn)) || !out.Equal(tensors.FromValue(wantOut)) {
					t.Errorf("%+v, batch %d, step %d: not the reference's", c, batch, step)
				}
			}
		}
	}
}

func TestBatchesRefuse(t *testing.T) {
	good := gpt.Config{Layers: 1, Width: 1, Heads: 1, Seq: 4, Vocab: 256}
	bad := good
	bad.Heads = 2
	ascii := good
	ascii.Vocab = 'o' // the text has an 'o' at offset 4
	text := gpt.Corpus{Name: "greeting", Text: []byte("hello")}
	for _, c := range []struct {
		corpus gpt.Corpus
		config gpt.Config
		batch  int
		want   string
	}{
		{text, good, 2, ""},
		{text, good, 0, "batch size 0"},
		{text, bad, 2, "Config.Heads is 2"},
		{gpt.Corpus{Name: "nothing"}, good, 2, `corpus "nothing" is empty`},
		{gpt.Corpus{Name: "short", Text: []byte("four")}, good, 2,
			`corpus "short" has 4 bytes, but a sequence of Config.Seq 4 with its last target needs 5`},
		{text, ascii, 2, `corpus "greeting" has byte 111 at offset 4, but Config.Vocab is 111: set it to at least 112`},
	} {
		_, err := c.corpus.Batches(c.config, c.batch)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%q: error %v, want %q", c.corpus.Name, err, c.want)
		}
	}
	b, err := text.Batches(good, 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		step, rank, world int
		want              string
	}{
		{0, 1, 2, ""}, {-1, 0, 1, "step -1"}, {0, 2, 2, "rank 2 of 2"}, {0, -1, 2, "rank -1 of 2"},
		{0, 0, 0, "rank 0 of 0"},
		{0, 0, 3, "a batch of 2 sequences cannot be split over 3 ranks"},
	} {
		_, _, err := b.Rank(c.step, c.rank, c.world)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("Rank(%d, %d, %d): error %v, want %q", c.step, c.rank, c.world, err, c.want)
		}
	}
}

// plainBatch returns a step's batch as the reference model defines it.
func plainBatch(c gpt.Config, batch, step int) (inputs, targets [][]int32) {
	text := gpt.Reference().Text
	for b := range batch {
		var in, out []int32
		for i := range c.Seq {
			at := (step*batch+b)*97 + i
			in, out = append(in, int32(text[at%len(text)])), append(out, int32(text[(at+1)%len(text)]))
		}
		inputs, targets = append(inputs, in), append(targets, out)
	}
	return inputs, targets
}
