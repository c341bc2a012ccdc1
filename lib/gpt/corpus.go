package gpt

import (
	"bytes"
	"errors"
	"fmt"
	"go/build"
	"io"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

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
