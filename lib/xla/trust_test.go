package xla

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/plugin"
)

// TestTrustIsForANumberOfDevices opens devices with an empty cache folder: all canaries run once for each number of
// them.
func TestTrustIsForANumberOfDevices(t *testing.T) {
	found := must.Get(Open(Devices(1), Plugin("cpu")))(t)
	path := found.Info().Plugin
	found.Close()
	cacheDir := t.TempDir()
	ran := func(devices int) []string {
		b := must.Get(Open(Devices(devices), Plugin(path), CacheDir(cacheDir)))(t)
		defer b.Close()
		var names []string
		for _, c := range b.Info().Canaries {
			names = append(names, c.Name)
		}
		return names
	}
	first, again, wider := ran(2), ran(2), ran(3)
	if !slices.Contains(first, "all-to-all over 2 devices") || !slices.Contains(wider, "all-to-all over 3 devices") {
		t.Errorf("2 devices run %q, and 3 after them %q", first, wider)
	}
	if len(again) == 0 || len(again) >= len(first) {
		t.Errorf("2 devices run %q, and once they are trusted %q", first, again)
	}
}

// TestTrustIsForGPUs: another driver or another model of GPU has other keys, so that canaries run again.
func TestTrustIsForGPUs(t *testing.T) {
	on := func(release, model string) (key, code string) {
		d := plugin.Driver{Release: release, CUDA: 13000, GPUs: []plugin.GPU{{Name: model}}}
		b := &Backend{owner: owner{driver: d}}
		return b.trustKey(), b.codeKey()
	}
	key, code := on("580.95.05", "NVIDIA H100 80GB HBM3")
	for _, other := range [][2]string{{"580.95.06", "NVIDIA H100 80GB HBM3"}, {"580.95.05", "NVIDIA H200"}} {
		if k, c := on(other[0], other[1]); k == key || c == code {
			t.Errorf("%q has the keys of another machine", other)
		}
	}
	if k, c := on("580.95.05", "NVIDIA H100 80GB HBM3"); k != key || c != code {
		t.Error("the same machine has other keys")
	}
}

// TestIdentity changes a file without changing its size and modification time.
func TestIdentity(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "plugin.so")
	then := time.Unix(1_000_000_000, 0)
	write := func(path, text string) {
		t.Helper()
		must.Do(t, os.WriteFile(path, []byte(text), 0o644))
		must.Do(t, os.Chtimes(path, then, then))
	}
	write(path, "right")
	before := identity(path)
	changed := func(path string) unix.Timespec {
		var file unix.Stat_t
		must.Do(t, unix.Stat(path, &file))
		return file.Ctim
	}
	if before == "" || identity(path) != before {
		t.Errorf("an unchanged file: %q, then %q", before, identity(path))
	}
	other := filepath.Join(dir, "other.so")
	write(other, "wrong")
	for changed(other) == changed(path) { // until the file system's clock has gone on
		write(other, "wrong")
	}
	write(path, "wrong")
	if identity(path) == before {
		t.Error("a file that was written to counts as unchanged")
	}
	before = identity(path)
	must.Do(t, os.Rename(other, path))
	if identity(path) == before {
		t.Error("another file in its place is taken for it")
	}
	if identity(filepath.Join(dir, "none.so")) != "" {
		t.Error("a file that is not there has an identity")
	}
}
