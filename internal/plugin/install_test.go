package plugin

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/go-xla/installer"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/systest"
)

// zipped is a zip file with one member.
func zipped(t *testing.T, name, text string) []byte {
	t.Helper()
	var file bytes.Buffer
	w := zip.NewWriter(&file)
	member := must.Get(w.Create(name))(t)
	must.Get(member.Write([]byte(text)))(t)
	must.Do(t, w.Close())
	return file.Bytes()
}

// fakePip stands for a Python with pip. It knows the wheels in the folder INDEX, and writes down what it is asked for.
const fakePip = `#!/bin/sh
while [ $# -gt 0 ]; do
	case "$1" in -r) pins=$2 ;; -d) dir=$2 ;; esac
	shift
done
[ -z "$pins" ] && exit 0
read -r line <"$pins"
name=${line%%==*}
echo "$name" >>INDEX/asked
[ -e "INDEX/$name.whl" ] && exec cp "INDEX/$name.whl" "$dir"
echo "ERROR: No matching distribution found for $name
[notice] A new release of pip is available" >&2
exit 1
`

// index is what stands in the place of PyPI, with two wheels pinned for this system, and of go-xla's downloads.
type index struct {
	t    *testing.T
	dir  string
	root string // the cache folder
}

func newIndex(t *testing.T) index {
	elsewhere(t)
	x := index{t, t.TempDir(), t.TempDir()}
	before, download := wheels, cpuInstall
	t.Cleanup(func() { wheels, cpuInstall = before, download })
	var pinned []wheel
	for _, name := range []string{"first", "second"} {
		file := zipped(t, "lib/plugin.so", name)
		x.put(name, file)
		sum := sha256.Sum256(file)
		pinned = append(pinned, wheel{name, "1.0", hex.EncodeToString(sum[:]), "lib/plugin.so"})
	}
	wheels = map[string][]wheel{runtime.GOOS + "/" + runtime.GOARCH: pinned}
	cpuInstall = func(string, string, string, bool, installer.VerbosityLevel) error {
		t.Error("go-xla's release is downloaded")
		return errors.New("refused")
	}
	x.python(strings.ReplaceAll(fakePip, "INDEX", x.dir))
	return x
}

// python puts a script in the place of every Python.
func (x index) python(script string) {
	bin := x.t.TempDir()
	for _, name := range []string{"python3", "python"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(script), 0o755); err != nil {
			x.t.Fatal(err)
		}
	}
	x.t.Setenv("PATH", bin+":/usr/bin:/bin")
}

// put gives a wheel another content.
func (x index) put(name string, content []byte) {
	if err := os.WriteFile(filepath.Join(x.dir, name+".whl"), content, 0o644); err != nil {
		x.t.Fatal(err)
	}
}

// remove takes wheels from the index.
func (x index) remove(names ...string) {
	for _, name := range names {
		if err := os.Remove(filepath.Join(x.dir, name+".whl")); err != nil {
			x.t.Fatal(err)
		}
	}
}

// asked lists the wheels that pip was asked for.
func (x index) asked() string {
	text, err := os.ReadFile(filepath.Join(x.dir, "asked"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		x.t.Fatal(err)
	}
	return strings.Join(strings.Fields(string(text)), " ")
}

func TestSources(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(index)
		used   string
		reason string // for which the first is not
	}{
		{"all is well", func(index) {}, "first", ""},
		{"the first is gone", func(x index) { x.remove("first") }, "second", "No matching distribution"},
		{"the first is damaged", func(x index) {
			x.put("first", zipped(t, "lib/plugin.so", "damaged"))
		}, "second", "SHA-256"},
		{"the first lacks the member", func(index) {
			for system := range wheels {
				wheels[system][0].Member = "lib/other.so"
			}
		}, "second", "lib/other.so"},
	} {
		t.Run(test.name, func(t *testing.T) {
			x := newIndex(t)
			test.change(x)
			var said []string
			p := must.Get(Ensure(t.Context(), "", x.root, func(_, _ int, what string) { said = append(said, what) }))(t)
			source, asked := "cache, first 1.0 from PyPI", "first"
			if test.used == "second" {
				source, asked = "cache, second 1.0 from PyPI, fallback for first 1.0", "first second"
			}
			if text, err := os.ReadFile(p.Path); string(text) != test.used {
				t.Errorf("%q is used (error %v), want %q", text, err, test.used)
			}
			if p.Source != source || p.Platform != CPU || !p.knowsFlags {
				t.Errorf("it is used as %+v, want the source %q", p, source)
			}
			reported := slices.ContainsFunc(said, func(what string) bool {
				return strings.Contains(what, "first 1.0 cannot be had") && strings.Contains(what, test.reason)
			})
			if reported != (test.used == "second") {
				t.Errorf("the report: %q", said)
			}
			for range 2 { // what is installed stays
				if again, err := Ensure(t.Context(), "", x.root, nil); err != nil || again != p {
					t.Errorf("the next time: %+v, %v; want %+v", again, err, p)
				}
			}
			if got := x.asked(); got != asked {
				t.Errorf("pip was asked for %q, want %q", got, asked)
			}
			for _, s := range verified(x.root) {
				if s.part.Begun() {
					t.Errorf("%s is left half installed", s.title)
				}
			}
		})
	}
}

// TestNoSource has no wheel that can be had: the error says why of each, and go-xla's release is not taken in their
// place.
func TestNoSource(t *testing.T) {
	goXLAToo := []string{`set SHARDBOOK_PLUGIN to the path of one, or to "go-xla"`, "cannot be verified"}
	for _, test := range []struct {
		name   string
		change func(index)
		asked  string
		want   []string
	}{
		{"both are gone", func(x index) { x.remove("first", "second") }, "first second", []string{
			"first 1.0 cannot be had: pip download: exit status 1: No matching distribution found for first; ",
			"second 1.0 cannot be had: pip download: exit status 1: No matching distribution found for second: ",
		}},
		{"one is damaged, one gone", func(x index) {
			x.put("first", []byte("x"))
			x.remove("second")
		}, "first second", []string{"first 1.0 cannot be had: first.whl has SHA-256 ", "second 1.0 cannot be had: "}},
		{"there is no pip", func(x index) {
			x.python("#!/bin/sh\nexit 1\n")
		}, "", []string{"first 1.0 cannot be had: no Python with pip", "python3-venv"}},
		{"none is pinned", func(index) { clear(wheels) }, "", []string{"none is known for this system"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			x := newIndex(t)
			test.change(x)
			p, err := Ensure(t.Context(), "cpu", x.root, nil)
			if err == nil {
				t.Fatalf("no error: %+v", p)
			}
			for _, part := range append(test.want, goXLAToo...) {
				if strings.Count(err.Error(), part) != 1 {
					t.Errorf("the error does not say %q once: %v", part, err)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("the error is not one sentence: %v", err)
			}
			if got := x.asked(); got != test.asked {
				t.Errorf("pip was asked for %q, want %q", got, test.asked)
			}
		})
	}
}

// TestGoXLAIsAskedFor has go-xla's release installed by its name. From then on it is used.
func TestGoXLAIsAskedFor(t *testing.T) {
	x := newIndex(t)
	if len(unverified(x.root)) == 0 {
		systest.Skip(t, systest.System, "go-xla has no plugin for this system")
	}
	_, err := Find(goXLA, x.root)
	if !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "setup --plugin go-xla") {
		t.Errorf("before: %v", err)
	}
	blocked := errors.New("blocked")
	cpuInstall = func(string, string, string, bool, installer.VerbosityLevel) error { return blocked }
	if _, err := Ensure(t.Context(), goXLA, x.root, nil); !errors.Is(err, blocked) {
		t.Errorf("a download that fails: %v", err)
	}
	cpuInstall = func(_, version, dir string, _ bool, _ installer.VerbosityLevel) error {
		touch(t, filepath.Join(dir, "pjrt_c_api_cpu_"+version+"_plugin.so"))
		return nil
	}
	p, err := Ensure(t.Context(), goXLA, x.root, nil)
	want := "cache, go-xla's release " + goXLAVersion + ", not verified"
	if err != nil || p.Source != want || p.knowsFlags {
		t.Fatalf("asked for by name: %+v, %v; want the source %q", p, err, want)
	}
	if again, err := Ensure(t.Context(), "", x.root, nil); err != nil || again != p {
		t.Errorf("afterwards: %+v, %v; want %+v", again, err, p)
	}
	if got := x.asked(); got != "" {
		t.Errorf("pip was asked for %q", got)
	}
}

// TestCancelledIsNotGone cancels the first download: that is no reason to begin the second.
func TestCancelledIsNotGone(t *testing.T) {
	x := newIndex(t)
	ctx, cancel := context.WithCancel(t.Context())
	var said []string
	_, err := Ensure(ctx, "", x.root, func(_, _ int, what string) {
		said = append(said, what)
		cancel()
	})
	if !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "second") {
		t.Errorf("error %v, want that the context was cancelled", err)
	}
	if len(said) != 1 || !strings.Contains(said[0], "downloading first 1.0") || x.asked() != "" {
		t.Errorf("it went on: %q, pip was asked for %q", said, x.asked())
	}
}
