package gpt_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"go/build"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/gpt"
)

// write creates files below a new folder.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		name = filepath.Join(dir, name)
		must.Do(t, os.MkdirAll(filepath.Dir(name), 0o755))
		must.Do(t, os.WriteFile(name, []byte(text), 0o644))
	}
	return dir
}

func TestReadCorpus(t *testing.T) {
	dir := write(t, map[string]string{
		"b.txt": "second ", "a.txt": "first ", "c/x": "third ", "d": "fourth", "empty": "", ".git/config": "no",
		"c/.hidden": "no",
	})
	for _, c := range []struct {
		path    string
		options []gpt.Option
		want    string
	}{
		{dir, nil, "first second third fourth"},
		{dir, []gpt.Option{gpt.Limit(0)}, "first second third fourth"},
		{dir, []gpt.Option{gpt.Limit(6)}, "first "},
		{dir, []gpt.Option{gpt.Limit(8)}, "first se"},
		{dir, []gpt.Option{gpt.Limit(1000)}, "first second third fourth"},
		{filepath.Join(dir, "d"), nil, "fourth"},
		{filepath.Join(dir, "d"), []gpt.Option{gpt.Limit(4)}, "four"},
		{filepath.Join(dir, ".git", "config"), nil, "no"}, // hidden, but asked for by name
	} {
		corpus, err := gpt.ReadCorpus(c.path, c.options...)
		if err != nil {
			t.Errorf("%s: %v", c.path, err)
		}
		if string(corpus.Text) != c.want {
			t.Errorf("%s: %q, want %q", c.path, corpus.Text, c.want)
		}
	}
	special := t.TempDir()
	must.Do(t, syscall.Mkfifo(filepath.Join(special, "pipe"), 0o644))
	must.Do(t, os.WriteFile(filepath.Join(special, "sparse"), nil, 0o644))
	must.Do(t, os.Truncate(filepath.Join(special, "sparse"), 100e9))
	for path, want := range map[string]string{
		filepath.Join(dir, "none"):       "no such file",
		filepath.Join(dir, "empty"):      "is empty",
		t.TempDir():                      "is empty",
		"/dev/zero":                      "/dev/zero is a character device",
		filepath.Join(special, "pipe"):   "a named pipe",
		filepath.Join(special, "sparse"): "100000000000 bytes, but a text has at most 4294967296",
		special:                          "100000000000 bytes, but a text has at most 4294967296",
	} {
		_, err := gpt.ReadCorpus(path)
		refused(t, path, err, want)
	}
	if c, err := gpt.ReadCorpus(filepath.Join(special, "sparse"), gpt.Limit(1000)); err != nil || len(c.Text) != 1000 {
		t.Errorf("the beginning of a long file: %d bytes, error %v", len(c.Text), err)
	}
}

func TestGoSource(t *testing.T) {
	all := must.Value(gpt.GoSource())
	if len(all.Text) < 10<<20 {
		t.Errorf("%d bytes: Go's standard library has more than 10 MiB", len(all.Text))
	}
	// archive/tar/common.go is the first file in the order of the paths, unicode/utf8/utf8.go one of the last.
	if !bytes.Contains(all.Text[:4096], []byte("Package tar implements access to tar archives.")) {
		t.Error("the text does not begin with archive/tar")
	}
	for text, want := range map[string]bool{
		"\nfunc Println(a ...any) (n int, err error)": true,  // fmt/print.go
		"\nfunc TestParseFloatPrefix(":                false, // strconv/atof_test.go
		"\npackage dnsmessage\n":                      false, // vendor/golang.org/x/net
		"\npackage gofmt":                             false,
		"\nfunc gofmtMain(":                           false, // cmd/gofmt/gofmt.go
	} {
		if got := bytes.Contains(all.Text, []byte(text)); got != want {
			t.Errorf("contains %q: %v, want %v", text, got, want)
		}
	}
	again := must.Value(gpt.GoSource(gpt.Limit(1<<20 + 1)))
	if !bytes.Equal(again.Text, all.Text[:1<<20+1]) {
		t.Error("a limited text is not the beginning of the whole")
	}
}

// If GOROOT does not exist, the go command's is used.
func TestGoSourceFindsGoCommand(t *testing.T) {
	old := build.Default.GOROOT
	defer func() { build.Default.GOROOT = old }()
	want := must.Value(gpt.GoSource(gpt.Limit(1 << 16)))
	for _, root := range []string{"", t.TempDir()} {
		build.Default.GOROOT = root
		got, err := gpt.GoSource(gpt.Limit(1 << 16))
		if err != nil {
			t.Fatalf("GOROOT %q: %v", root, err)
		}
		if !bytes.Equal(got.Text, want.Text) {
			t.Errorf("GOROOT %q: another text", root)
		}
	}
	t.Setenv("PATH", t.TempDir())
	_, err := gpt.GoSource()
	refused(t, "without Go", err, "install Go or set GOROOT")
}

// The text's length and SHA-256 were computed with Python from the reference model's definition.
func TestReferenceText(t *testing.T) {
	text := gpt.Reference().Text
	sum := fmt.Sprintf("%x", sha256.Sum256(text))
	if want := "350009fe9bce534226dbc0d4484787c19ea45c13bf5acbfc8535c96c948ff846"; len(text) != 403 || sum != want {
		t.Errorf("%d bytes with SHA-256 %s, want 403 with %s", len(text), sum, want)
	}
}

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
			b := must.Value(corpus.Batches(gpt.Config{Layers: 1, Width: 1, Heads: 1, Seq: seq, Vocab: 256}, batch))
			want := make(map[string]bool) // the windows, each with its last target
			for at := 0; at < size-1; at += seq {
				from := min(at, size-1-seq)
				want[string(text[from:from+seq+1])] = true
			}
			var drawn []string
			for step := 0; len(drawn) < 3*len(want); step++ {
				in, out, err := b.Step(step)
				must.Do(t, err)
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
			b := must.Value(corpus.Batches(config, batch))
			for world := 1; world <= 8; world++ {
				for step := range 5 {
					wantIn, wantOut, err := b.Step(step)
					must.Do(t, err)
					var in, out []string
					for rank := range world {
						i, o, err := b.Rank(step, rank, world)
						if batch%world != 0 {
							if err == nil || !strings.Contains(err.Error(), "cannot be split") {
								t.Fatalf("batch %d, world %d: error %v", batch, world, err)
							}
							continue
						}
						must.Do(t, err)
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
		b := must.Value(gpt.Corpus{Text: numbered(400), Seed: seed}.Batches(config, 100))
		in, _, err := b.Step(0)
		must.Do(t, err)
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
			b := must.Value(gpt.Reference().Batches(c, batch))
			for _, step := range []int{0, 1, 77} {
				in, out, err := b.Step(step)
				must.Do(t, err)
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
		refused(t, c.corpus.Name, err, c.want)
	}
	b := must.Value(text.Batches(good, 2))
	for _, c := range []struct {
		step, rank, world int
		want              string
	}{
		{0, 1, 2, ""}, {-1, 0, 1, "step -1"}, {0, 2, 2, "rank 2 of 2"}, {0, -1, 2, "rank -1 of 2"},
		{0, 0, 0, "rank 0 of 0"},
		{0, 0, 3, "a batch of 2 sequences cannot be split over 3 ranks"},
	} {
		_, _, err := b.Rank(c.step, c.rank, c.world)
		refused(t, c, err, c.want)
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

// The next token's logits are those of the plain model at the end of the text, whatever follows it.
func TestNextLogits(t *testing.T) {
	random := rand.New(rand.NewPCG(13, 14))
	c := gpt.Config{Layers: 1, Width: 8, Heads: 2, Seq: 6, Vocab: 11}
	w, plain := randomModel(c, random)
	row := randomTokens(random, 1, c.Seq, c.Vocab)
	for _, last := range []int32{0, 3, 5} {
		out := must.Value(call(func(in []*graph.Node) []*graph.Node {
			n := len(w)
			return []*graph.Node{c.NextLogits(c.Params().Nodes(in[:n]), in[n], in[n+1])}
		}, append(slices.Clone(w), tensors.FromValue(row), tensors.FromScalar(last))...))
		want := plain.logits(row[0])[last]
		for v, got := range tensors.MustCopyFlatData[float32](out[0]) {
			if math.Abs(float64(got)-want[v]) > 2e-5 {
				t.Errorf("after token %d, logit %d: %g, want %g", last, v, got, want[v])
			}
		}
	}
}

// successor is a model that knows one thing: byte b is followed by b+1.
func successor(tokens *tensors.Tensor, last int32) ([]float32, error) {
	row := tensors.MustCopyFlatData[int32](tokens)
	logits := make([]float32, 128)
	logits[(row[last]+1)%128] = 3
	return logits, nil
}

func TestGenerate(t *testing.T) {
	c := gpt.Config{Layers: 1, Width: 4, Heads: 1, Seq: 4, Vocab: 128}
	text, err := c.Generate([]byte("a"), 9, gpt.Sampling{}, successor)
	if err != nil || string(text) != "bcdefghij" { // past Seq
		t.Errorf("text %q, error %v", text, err)
	}
	// With only the likeliest token, the temperature does not matter.
	if text, _ := c.Generate([]byte("x"), 3, gpt.Sampling{Temperature: 5, TopK: 1}, successor); string(text) != "yz{" {
		t.Errorf("top 1: %q", text)
	}
	hot := gpt.Sampling{Temperature: 1, Seed: 7}
	one, _ := c.Generate([]byte("x"), 200, hot, successor)
	two, _ := c.Generate([]byte("x"), 200, hot, successor)
	if !slices.Equal(one, two) {
		t.Error("the same seed drew another text")
	}
	// The likely token has probability e³/(e³+127) = 0.137, so its mean is 27 in 200, with standard deviation 4.9.
	hits, before := 0, byte('x')
	for _, b := range one {
		if b == (before+1)%128 {
			hits++
		}
		before = b
	}
	if hits < 8 || hits > 52 {
		t.Errorf("the likely token was drawn %d times in 200, want about 27", hits)
	}
}

func TestGenerateErrors(t *testing.T) {
	c := gpt.Config{Layers: 1, Width: 4, Heads: 1, Seq: 4, Vocab: 128}
	broken := errors.New("the device is gone")
	for _, bad := range []struct {
		prompt string
		n      int
		s      gpt.Sampling
		logits func(*tensors.Tensor, int32) ([]float32, error)
		want   string
	}{
		{"", 1, gpt.Sampling{}, successor, "the prompt is empty"},
		{"\xff", 1, gpt.Sampling{}, successor, "byte 255"},
		{"a", -1, gpt.Sampling{}, successor, "-1 bytes"},
		{"a", 1, gpt.Sampling{Temperature: math.NaN()}, successor, "Temperature is NaN"},
		{"a", 1, gpt.Sampling{TopK: -1}, successor, "TopK is -1"},
		{"a", 1, gpt.Sampling{}, func(*tensors.Tensor, int32) ([]float32, error) { return nil, broken },
			"the device is gone"},
		{"a", 1, gpt.Sampling{}, func(*tensors.Tensor, int32) ([]float32, error) {
			return []float32{1, float32(math.NaN())}, nil
		}, "has diverged"},
	} {
		_, err := c.Generate([]byte(bad.prompt), bad.n, bad.s, bad.logits)
		refused(t, bad.prompt, err, bad.want)
	}
}
