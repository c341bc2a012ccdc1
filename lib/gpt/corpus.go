package gpt

import (
	"bytes"
	"errors"
	"fmt"
	"go/build"
	"io"
	"io/fs"
	"math"
	"math/bits"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/userfile"
)

// Corpus is a training text. Its tokens are its bytes.
type Corpus struct {
	// Name is the text's source, for messages.
	Name string
	// Text is the full text. It must not change while it is in use.
	Text []byte
	// Seed chooses the order in which [Corpus.Batches] visits the text.
	Seed uint64

	cyclic bool // see Reference
}

// maxCorpus is the largest number of bytes of a text, which is held in memory.
const maxCorpus = 4 << 30

// Option changes what [ReadCorpus] and [GoSource] read.
type Option func(*reading)

type reading struct {
	limit int64 // bytes; 0: no limit
	keep  func(name string, folder bool) bool
}

// Limit ends the text after a number of bytes, if need be inside a file. The default, and any number below 1, does not
// limit it: a text larger than maxCorpus is then an error.
func Limit(bytes int64) Option { return func(r *reading) { r.limit = bytes } }

// ReadCorpus reads a file, or all regular files below a folder joined in the order of their paths. In a folder, it
// skips files and folders whose name begins with a dot and does not follow symbolic links. It is an error if a file
// cannot be read, the text is empty or larger than 4 GiB, or name is neither a folder nor a regular file (a pipe may
// never end).
func ReadCorpus(name string, options ...Option) (Corpus, error) {
	info, err := os.Stat(name)
	if err != nil {
		return Corpus{}, fmt.Errorf("gpt: corpus: %w", err)
	}
	if !info.IsDir() {
		return newReading(options).read(name, filepath.Dir(name), filepath.Base(name))
	}
	return newReading(options).read(name, name, ".")
}

// GoSource reads the source of Go's standard library, about 26 MB that every Go installation has: all .go files below
// GOROOT/src in the order of their paths, except tests, testdata, vendored modules and cmd. The text depends on the
// installed Go version. It is an error if no Go installation is found.
func GoSource(options ...Option) (Corpus, error) {
	src, err := goSourceFolder()
	if err != nil {
		return Corpus{}, err
	}
	r := newReading(options)
	r.keep = func(name string, folder bool) bool {
		if folder {
			base := path.Base(name)
			return name != "cmd" && base != "vendor" && base != "testdata"
		}
		return strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go")
	}
	return r.read("the Go standard library", src, ".")
}

// goSourceFolder returns the standard library's folder of the installation that built this program or, if that is not
// here, of the go command in the path.
func goSourceFolder() (string, error) {
	var tried []string
	check := func(root string) (string, bool) {
		src := filepath.Join(root, "src")
		tried = append(tried, src)
		_, err := os.Stat(filepath.Join(src, "fmt", "print.go"))
		return src, err == nil
	}
	if root := build.Default.GOROOT; root != "" {
		if src, ok := check(root); ok {
			return src, nil
		}
	}
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("gpt: no Go source in %q, and go env GOROOT failed (%w): install Go or set GOROOT", tried,
			err)
	}
	src, ok := check(strings.TrimSpace(string(out)))
	if !ok {
		return "", fmt.Errorf("gpt: no Go source in %q: install Go with its source or set GOROOT", tried)
	}
	return src, nil
}

func newReading(options []Option) *reading {
	r := &reading{keep: func(string, bool) bool { return true }}
	for _, o := range options {
		o(r)
	}
	return r
}

// errEnough ends a walk at the limit.
var errEnough = errors.New("limit reached")

// read joins the files at or below start, a path within a folder, in lexical order of each folder's entries.
func (r *reading) read(name, folder, start string) (Corpus, error) {
	var text []byte
	err := fs.WalkDir(os.DirFS(folder), start, func(at string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case at != start && (strings.HasPrefix(entry.Name(), ".") || !r.keep(at, entry.IsDir())):
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		case entry.IsDir() || at != start && !entry.Type().IsRegular():
			return nil
		}
		text, err = r.appendFile(text, filepath.Join(folder, at))
		return err
	})
	if err != nil && !errors.Is(err, errEnough) {
		return Corpus{}, fmt.Errorf("gpt: corpus %s: %w", name, err)
	}
	if len(text) == 0 {
		return Corpus{}, fmt.Errorf("gpt: corpus %s is empty: choose a file, or a folder of files, with text", name)
	}
	return Corpus{Name: name, Text: text}, nil
}

// appendFile appends a file's content up to the limit; it returns errEnough when the limit is reached.
func (r *reading) appendFile(text []byte, path string) ([]byte, error) {
	most, cut := int64(maxCorpus), false
	if r.limit > 0 && r.limit <= most {
		most, cut = r.limit, true
	}
	f, err := userfile.Open(path, math.MaxInt64)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	rest := most - int64(len(text))
	if info.Size() > rest && !cut {
		return nil, fmt.Errorf("with %s there are %d bytes, but a text has at most %d: choose fewer or smaller files, "+
			"or limit the number of bytes", path, int64(len(text))+info.Size(), most)
	}
	all := bytes.NewBuffer(text)
	all.Grow(int(min(info.Size(), rest)) + bytes.MinRead)
	if _, err := all.ReadFrom(io.LimitReader(f, rest)); err != nil {
		return nil, err
	}
	if cut && int64(all.Len()) >= most {
		return all.Bytes(), errEnough
	}
	return all.Bytes(), nil
}

// referenceText is the training text of the reference model, 403 bytes.
const referenceText = "A collective moves data between devices so that each of them ends with what it needs. " +
	"In an all-reduce every device ends with the sum; in a reduce-scatter, with its part of " +
	"it; in an all-gather, with every part. Data-parallel training sums the gradients, the " +
	"sharded optimizers keep one part of the state on each device, tensor parallelism splits " +
	"the matrices themselves and pipelines split the layers. "

// referenceStride is the number of bytes from the start of one sequence to the next.
const referenceStride = 97

// Reference returns the training text of the reference model. Unlike other corpora it is cyclic, and sequence b of step
// s starts at its byte (s·B + b)·97: together with the initial weights of [Config.Init] this fixes a training run, in
// any language. Its Seed has no effect, and any sequence length will do.
func Reference() Corpus {
	return Corpus{Name: "reference", Text: []byte(referenceText), cyclic: true}
}

// Batches returns the training batch of any step as a function of the step's number alone: it has no state, so a run
// can stop and continue anywhere and every rank can compute its own shard.
type Batches struct {
	text       []byte
	batch, seq int
	start      func(n uint64) int // the offset in the text of sequence n, counted from step 0
}

// Batches splits the text into batches of the given number of sequences, each Seq tokens long. An epoch is one pass
// over all windows of the text; a window is Seq inputs and, shifted by one byte, Seq targets. Windows are consecutive,
// and the last one is moved back to end with the text, so each byte except the first is a target in every epoch. The
// corpus' Seed and the epoch choose the order of the windows; a batch may contain the end of one epoch and the start of
// the next.
//
// It is an error if the configuration or the batch size is invalid, the text is too short for one sequence, or the text
// has a byte outside of the vocabulary.
func (c Corpus) Batches(config Config, batch int) (*Batches, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	seq := config.Seq
	switch {
	case batch < 1:
		return nil, fmt.Errorf("gpt: batch size %d: set it to at least 1", batch)
	case batch > maxTokens/seq:
		return nil, fmt.Errorf("gpt: a batch of %d sequences of %d tokens: choose at most %d tokens per batch", batch,
			seq, maxTokens)
	case len(c.Text) == 0:
		return nil, fmt.Errorf("gpt: corpus %q is empty: give it a text", c.Name)
	case !c.cyclic && len(c.Text) < seq+1:
		return nil, fmt.Errorf("gpt: corpus %q has %d bytes, but a sequence of Config.Seq %d with its last target "+
			"needs %d: use a longer text or a shorter sequence", c.Name, len(c.Text), seq, seq+1)
	}
	if top := slices.Max(c.Text); int(top) >= config.Vocab {
		return nil, fmt.Errorf("gpt: corpus %q has byte %d at offset %d, but Config.Vocab is %d: set it to at least %d",
			c.Name, top, bytes.IndexByte(c.Text, top), config.Vocab, int(top)+1)
	}
	b := &Batches{text: c.Text, batch: batch, seq: seq}
	if c.cyclic {
		b.start = func(n uint64) int { return int(n * referenceStride % uint64(len(c.Text))) }
		return b, nil
	}
	last := len(c.Text) - 1 - seq           // where the last window starts
	windows := uint64((last+seq-1)/seq + 1) // in an epoch
	b.start = func(n uint64) int {
		return min(int(newOrder(windows, c.Seed, n/windows).at(n%windows))*seq, last)
	}
	return b, nil
}

// maxTokens is the largest number of tokens in a batch, 8 GiB as int32.
const maxTokens = 1 << 31

// Step returns the inputs and the targets of a step, each (B,T) int32. Steps count from 0; a negative step is an error.
func (b *Batches) Step(step int) (inputs, targets *tensors.Tensor, err error) {
	return b.Rank(step, 0, 1)
}

// Rank returns one rank's shard of a step's batch: inputs and targets, each (B/world,T) int32. Rank r gets sequences
// r·B/world to (r+1)·B/world−1 of the batch that [Batches.Step] returns. It is an error if the step is negative, the
// rank is not below world, or world does not divide the batch.
func (b *Batches) Rank(step, rank, world int) (inputs, targets *tensors.Tensor, err error) {
	switch {
	case step < 0:
		return nil, nil, fmt.Errorf("gpt: step %d: choose at least 0", step)
	case world < 1 || rank < 0 || rank >= world:
		return nil, nil, fmt.Errorf("gpt: rank %d of %d: choose a rank from 0 to the number of ranks less 1", rank,
			world)
	case b.batch%world != 0:
		return nil, nil, fmt.Errorf("gpt: a batch of %d sequences cannot be split over %d ranks: choose a multiple of "+
			"%d", b.batch, world, world)
	}
	n := b.batch / world
	in, out := make([]int32, 0, n*b.seq), make([]int32, 0, n*b.seq)
	first := uint64(step)*uint64(b.batch) + uint64(rank*n)
	for r := range uint64(n) {
		at := b.start(first + r)
		for i := range b.seq {
			in = append(in, int32(b.text[(at+i)%len(b.text)]))
			out = append(out, int32(b.text[(at+i+1)%len(b.text)]))
		}
	}
	return tensors.FromFlatDataAndDimensions(in, n, b.seq), tensors.FromFlatDataAndDimensions(out, n, b.seq), nil
}

// order is a pseudo-random permutation of 0 to n−1 that is computed rather than stored: a four-round Feistel network
// over the smallest even number of bits that holds n−1 (Luby & Rackoff 1988, "How to Construct Pseudorandom
// Permutations from Pseudorandom Functions"), applied again while its result is n or more (cycle walking: Black &
// Rogaway 2002, "Ciphers with Arbitrary Finite Domains"). It needs fewer than 4 applications on average.
type order struct {
	n    uint64
	half int // bits in each half
	keys [4]uint64
}

// newOrder returns the permutation of 0 to n−1 that seed and epoch choose, for n of at least 1.
func newOrder(n, seed, epoch uint64) order {
	o := order{n: n, half: (bits.Len64(n-1) + 1) / 2}
	key := splitmix64(seed) ^ epoch
	for i := range o.keys {
		key = splitmix64(key)
		o.keys[i] = key
	}
	return o
}

// at returns the i-th element, for i in 0 to n−1.
func (o order) at(i uint64) uint64 {
	mask := uint64(1)<<o.half - 1
	for {
		left, right := i>>o.half, i&mask
		for _, key := range o.keys {
			left, right = right, left^splitmix64(right^key)&mask
		}
		if i = left<<o.half | right; i < o.n {
			return i
		}
	}
}
