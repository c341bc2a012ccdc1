package gpt_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"go/build"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/shardbook/shardbook/lib/gpt"
)

// write creates files below a new folder.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
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
	if err := syscall.Mkfifo(filepath.Join(special, "pipe"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(special, "sparse"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(special, "sparse"), 100e9); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "none"):       "no such file",
		filepath.Join(dir, "empty"):      "is empty",
		t.TempDir():                      "is empty",
		"/dev/zero":                      "/dev/zero is a character device",
		filepath.Join(special, "pipe"):   "a named pipe",
		filepath.Join(special, "sparse"): "100000000000 bytes, but a text has at most 4294967296",
		special:                          "100000000000 bytes, but a text has at most 4294967296",
	} {
		if _, err := gpt.ReadCorpus(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", path, err, want)
		}
	}
	if c, err := gpt.ReadCorpus(filepath.Join(special, "sparse"), gpt.Limit(1000)); err != nil || len(c.Text) != 1000 {
		t.Errorf("the beginning of a long file: %d bytes, error %v", len(c.Text), err)
	}
}

func TestGoSource(t *testing.T) {
	all, err := gpt.GoSource()
	if err != nil {
		t.Fatal(err)
	}
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
	again, err := gpt.GoSource(gpt.Limit(1<<20 + 1))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(again.Text, all.Text[:1<<20+1]) {
		t.Error("a limited text is not the beginning of the whole")
	}
}

// If GOROOT does not exist, the go command's is used.
func TestGoSourceFindsGoCommand(t *testing.T) {
	old := build.Default.GOROOT
	defer func() { build.Default.GOROOT = old }()
	want, err := gpt.GoSource(gpt.Limit(1 << 16))
	if err != nil {
		t.Fatal(err)
	}
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
	if _, err := gpt.GoSource(); err == nil || !strings.Contains(err.Error(), "install Go or set GOROOT") {
		t.Errorf("without Go: error %v", err)
	}
}

// The text's length and SHA-256 were computed with Python from the reference model's definition.
func TestReferenceText(t *testing.T) {
	text := gpt.Reference().Text
	sum := fmt.Sprintf("%x", sha256.Sum256(text))
	if want := "350009fe9bce534226dbc0d4484787c19ea45c13bf5acbfc8535c96c948ff846"; len(text) != 403 || sum != want {
		t.Errorf("%d bytes with SHA-256 %s, want 403 with %s", len(text), sum, want)
	}
}
