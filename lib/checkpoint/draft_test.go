package checkpoint

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/params"
)

// Of writers of the same step, one succeeds and the others return errors. Writers of other steps do not disturb each
// other, and neither does the removal of old checkpoints and abandoned drafts.
func TestConcurrent(t *testing.T) {
	dir := t.TempDir()
	tree := params.Tree{params.New("w", dtypes.Int32, 1000)}
	var won [4]int
	var mu sync.Mutex
	var group sync.WaitGroup
	for writer := range 4 {
		value := tensors.FromValue(slices.Repeat([]int32{int32(writer)}, 1000))
		group.Go(func() {
			for step := range 10 {
				if _, err := Save(t.Context(), dir, step, writer, tree, []*tensors.Tensor{value}, 3); err == nil {
					mu.Lock()
					won[writer]++
					mu.Unlock()
				} else if !errors.Is(err, fs.ErrExist) {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	if total := won[0] + won[1] + won[2] + won[3]; total < 10 { // more if a removed step was saved anew
		t.Errorf("%v checkpoints were saved, want one of each step", won)
	}
	got := listing(t, dir)
	if !slices.Contains(got, folderName(9)) || slices.ContainsFunc(got,
		func(name string) bool { return name[0] == '.' }) {
		t.Errorf("there are %q", got)
	}
	for _, name := range got {
		c := open(t, filepath.Join(dir, name))
		var writer int32
		if err := c.Meta(&writer); err != nil {
			t.Error(err)
		}
		if flat := tensors.MustCopyFlatData[int32](read(t, c, tree)[0]); !slices.Equal(flat,
			slices.Repeat([]int32{writer}, 1000)) {
			t.Errorf("%s mixes writers", name)
		}
	}
}

// A draft is removed when its writer has ended, and not before.
func TestAbandoned(t *testing.T) {
	dir := t.TempDir()
	alive := must.Get(newDraft(filepath.Join(dir, folderName(7))))(t)
	dead := must.Get(newDraft(filepath.Join(dir, folderName(8))))(t)
	must.Do(t, os.WriteFile(filepath.Join(dead.path, manifestName), []byte("{"), 0o666))
	dead.manifest.Close() // as the end of its process would
	empty := draftPath(filepath.Join(dir, folderName(9)))
	foreign := filepath.Join(dir, ".step-00000009.tmp")
	for _, folder := range []string{empty, foreign} {
		must.Do(t, os.Mkdir(folder, 0o777))
	}
	save1(t, dir, 10, 1)
	want := []string{filepath.Base(alive.path), filepath.Base(foreign), folderName(10)}
	slices.Sort(want)
	if got := listing(t, dir); !slices.Equal(got, want) {
		t.Errorf("there are %q, want %q", got, want)
	}
	alive.discard()
	if got := listing(t, dir); len(got) != 2 {
		t.Errorf("after the end of the draft there are %q", got)
	}
}

// However often others remove abandoned drafts meanwhile, a new draft exists once begin has returned.
func TestDraftBegins(t *testing.T) {
	dir := t.TempDir()
	var group sync.WaitGroup
	done := make(chan struct{})
	for range 2 {
		group.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					removeAbandoned(dir, time.Time{})
				}
			}
		})
	}
	for range 60 {
		d, err := newDraft(filepath.Join(dir, folderName(1)))
		if err != nil {
			t.Error(err)
			break
		}
		removeAbandoned(dir, time.Time{})
		if err := stillThere(d.manifest, d.manifest.Name()); err != nil {
			t.Errorf("a draft that had begun was removed: %v", err)
		}
		d.discard()
	}
	close(done)
	group.Wait()
	if left := listing(t, dir); len(left) > 0 {
		t.Errorf("%q are left", left)
	}
}

// A lock may be visible only on its own host. Another host's draft is not removed until nothing in it has changed for a
// day by the file system's clock.
func TestOtherHostsDraft(t *testing.T) {
	dir := t.TempDir()
	now := func() time.Time {
		name := filepath.Join(t.TempDir(), "now")
		must.Do(t, os.WriteFile(name, nil, 0o644))
		info := must.Get(os.Stat(name))(t)
		return info.ModTime()
	}()
	const written, folder = "data-00003.safetensors", "."
	plant := func(host string, ages map[string]time.Duration) string {
		path := draftPathOf(host, filepath.Join(dir, folderName(7)))
		must.Do(t, os.Mkdir(path, 0o755))
		for name := range ages {
			if name != folder {
				must.Do(t, os.WriteFile(filepath.Join(path, name), []byte("half of it"), 0o644))
			}
		}
		for name, age := range ages {
			must.Do(t, os.Chtimes(filepath.Join(path, name), now.Add(-age), now.Add(-age)))
		}
		return filepath.Base(path)
	}
	const other, long, short = "00000000deadbeef", quiet + time.Hour, quiet - time.Hour
	keep := []string{
		plant(other, map[string]time.Duration{folder: 0, manifestName: 0, written: 0}),
		plant(other, map[string]time.Duration{folder: short, manifestName: short}),
		plant(other, map[string]time.Duration{folder: long, manifestName: long, written: short}), // a long write
		// about to create its manifest
		plant(other, map[string]time.Duration{folder: short}),
		// clocks that were changed
		plant(other, map[string]time.Duration{folder: -long, manifestName: -long}),
		folderName(8),
	}
	plant(other, map[string]time.Duration{folder: long, manifestName: long, written: long})
	plant(other, map[string]time.Duration{folder: long, written: long})
	plant(other, map[string]time.Duration{folder: long})
	plant(host(), map[string]time.Duration{folder: 0, manifestName: 0, written: 0})
	save1(t, dir, 8, 1)
	slices.Sort(keep)
	if got := listing(t, dir); !slices.Equal(got, keep) {
		t.Errorf("there are %q, want %q", got, keep)
	}
}

// Drafts of versions without hosts in names are removed like those of another host.
func TestDraftOfNoHost(t *testing.T) {
	dir := t.TempDir()
	const fresh, old = ".step-00000001.00000000deadbeef.tmp", ".step-00000002.00000000deadbeef.tmp"
	for name, age := range map[string]time.Duration{fresh: 0, old: 2 * quiet} {
		path := filepath.Join(dir, name)
		must.Do(t, os.Mkdir(path, 0o755))
		then := time.Now().Add(-age) // a day away from what is tested
		must.Do(t, os.Chtimes(path, then, then))
	}
	save1(t, dir, 3, 1)
	if got, want := listing(t, dir), []string{fresh, folderName(3)}; !slices.Equal(got, want) {
		t.Errorf("there are %q, want %q", got, want)
	}
}

// A draft's manifest that is a link is not followed, and a pipe is not waited for.
func TestDraftsManifestIsNone(t *testing.T) {
	dir := t.TempDir()
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	must.Do(t, os.WriteFile(elsewhere, []byte("mine"), 0o644))
	for step, plant := range []func(name string) error{
		func(name string) error { return os.Symlink(elsewhere, name) },
		func(name string) error { return syscall.Mkfifo(name, 0o644) },
	} {
		path := draftPath(filepath.Join(dir, folderName(step)))
		must.Do(t, errors.Join(os.Mkdir(path, 0o755), plant(filepath.Join(path, manifestName))))
	}
	save1(t, dir, 3, 1)
	if text, err := os.ReadFile(elsewhere); string(text) != "mine" || err != nil {
		t.Errorf("what the link leads to holds %q, %v", text, err)
	}
	if got := listing(t, dir); len(got) != 3 {
		t.Errorf("there are %q, want the checkpoint and what nobody knows", got)
	}
}

// Only the owner may write, whatever the umask.
func TestModes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "runs", "first")
	for _, c := range []struct {
		step, umask  int
		folder, file fs.FileMode
	}{{1, 0, 0o755, 0o644}, {2, 0o002, 0o755, 0o644}, {3, 0o027, 0o750, 0o640}} {
		before := syscall.Umask(c.umask)
		path := save1(t, dir, c.step, 0)
		syscall.Umask(before)
		for _, name := range append(listing(t, path), ".") {
			info := must.Get(os.Stat(filepath.Join(path, name)))(t)
			want := c.file
			if info.IsDir() {
				want = c.folder
			}
			if got := info.Mode().Perm(); got != want {
				t.Errorf("with umask %03o, %s has mode %03o, want %03o", c.umask, name, got, want)
			}
		}
	}
	for _, path := range []string{dir, filepath.Dir(dir)} { // made with umask 0
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%s has mode %v, %v, want 0755", path, info.Mode(), err)
		}
	}
}
