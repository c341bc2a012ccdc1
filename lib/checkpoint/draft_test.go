package checkpoint

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/params"
)

// Writers of the same step: one wins, the others say so. Writers of other steps do not disturb each other, nor does the
// removal of old checkpoints and abandoned drafts that all of them make.
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
	if !slices.Contains(got, folderName(9)) || slices.ContainsFunc(got, func(name string) bool { return name[0] == '.' }) {
		t.Errorf("there are %q", got)
	}
	for _, name := range got {
		c := open(t, filepath.Join(dir, name))
		var writer int32
		if err := c.Meta(&writer); err != nil {
			t.Error(err)
		}
		if flat := tensors.MustCopyFlatData[int32](read(t, c, tree)[0]); !slices.Equal(flat, slices.Repeat([]int32{writer}, 1000)) {
			t.Errorf("%s mixes writers", name)
		}
	}
}

// A draft is removed when its writer is gone, and not before.
func TestAbandoned(t *testing.T) {
	dir := t.TempDir()
	alive, err := newDraft(filepath.Join(dir, folderName(7)))
	if err != nil {
		t.Fatal(err)
	}
	dead, err := newDraft(filepath.Join(dir, folderName(8)))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dead.path, manifestName), []byte("{"), 0o666); err != nil {
		t.Fatal(err)
	}
	dead.manifest.Close() // as the end of its process would
	empty := draftPath(filepath.Join(dir, folderName(9)))
	foreign := filepath.Join(dir, ".step-00000009.tmp")
	for _, folder := range []string{empty, foreign} {
		if err := os.Mkdir(folder, 0o777); err != nil {
			t.Fatal(err)
		}
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

// However often others look for abandoned drafts while one is begun, it is there once it has begun.
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
					removeAbandoned(dir)
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
		removeAbandoned(dir)
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
