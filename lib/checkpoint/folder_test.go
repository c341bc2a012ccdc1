package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gomlx/compute/dtypes"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/params"
)

// Save never replaces a checkpoint, or anything else with its name.
func TestExists(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "yet", "there")
	path := save1(t, dir, 3, 0)
	blocked := filepath.Join(dir, folderName(4))
	must.Do(t, os.Mkdir(blocked, 0o777))
	before := listing(t, dir)
	for step, at := range map[int]string{3: path, 4: blocked} {
		_, err := Save(t.Context(), dir, step, "other", nil, nil, 1)
		wantError(t, "saved again", err, at, "was not changed")
		if !errors.Is(err, fs.ErrExist) {
			t.Errorf("%v is not fs.ErrExist", err)
		}
	}
	if got := listing(t, dir); !slices.Equal(got, before) {
		t.Errorf("the folder has %q, had %q", got, before)
	}
	if got := read(t, open(t, path), params.Tree{params.New("w", dtypes.Float32,
		3)}); got[0].Value().([]float32)[2] != 3 {
		t.Errorf("the checkpoint holds %v", got)
	}
}

func TestKeep(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		step, keep int
		want       string
	}{
		{1, 0, "1"}, {2, 0, "1 2"}, {3, 5, "1 2 3"}, {4, 2, "3 4"}, {100000000, 2, "4 100000000"},
		{10, 2, "4 10 100000000"}, {11, 2, "10 11 100000000"}, {12, 1, "12 100000000"}, // gone back: later steps stay
	} {
		save1(t, dir, c.step, c.keep)
		var want []string
		for _, step := range strings.Fields(c.want) {
			want = append(want, fmt.Sprintf("step-%08s", step))
		}
		slices.Sort(want)
		if got := listing(t, dir); !slices.Equal(got, want) {
			t.Errorf("after step %d with keep %d there are %q, want %q", c.step, c.keep, got, want)
		}
	}
	// Incomplete checkpoints are neither counted nor removed.
	for _, name := range []string{"step-00000001", "step-1", "step-00000005x", "notes"} {
		must.Do(t, os.Mkdir(filepath.Join(dir, name), 0o777))
	}
	damaged := save1(t, dir, 13, 0)
	must.Do(t, os.Truncate(filepath.Join(damaged, dataName), 9))
	save1(t, dir, 14, 1)
	want := []string{"notes", "step-00000001", "step-00000005x", "step-00000013", "step-00000014", "step-1",
		"step-100000000"}
	if got := listing(t, dir); !slices.Equal(got, want) {
		t.Errorf("there are %q, want %q", got, want)
	}
}

func TestLatest(t *testing.T) {
	dir := t.TempDir()
	for _, none := range []string{dir, filepath.Join(dir, "missing")} {
		if _, err := Latest(none); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Latest of nothing: %v", err)
		}
	}
	must.Do(t, os.WriteFile(filepath.Join(dir, folderName(200000000)), nil, 0o666))
	older := save1(t, dir, 99999999, 0)
	newer := save1(t, dir, 100000000, 0) // before the older one in alphabetical order
	must.Do(t, os.MkdirAll(filepath.Join(dir, folderName(100000001)), 0o777))
	must.Do(t, os.Mkdir(draftPath(newer), 0o777))
	if got, err := Latest(dir); got != newer || err != nil {
		t.Errorf("Latest = %s, %v; want %s", got, err, newer)
	}
	must.Do(t, os.Truncate(filepath.Join(newer, dataName), 9))
	_, err := Latest(dir)
	wantError(t, "a damaged one", err, newer, "9 bytes", "this is the latest")
	must.Do(t, os.Remove(filepath.Join(newer, manifestName)))
	if got, err := Latest(dir); got != older || err != nil {
		t.Errorf("Latest = %s, %v; want %s", got, err, older)
	}
	_, err = Open(newer)
	wantError(t, "no manifest", err, newer)
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v is not fs.ErrNotExist", err)
	}
}

// A reader always finds a complete checkpoint, although the only one is replaced again and again.
func TestLatestWhileSaving(t *testing.T) {
	dir := t.TempDir()
	save1(t, dir, 0, 1)
	var group sync.WaitGroup
	done := make(chan struct{})
	group.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			if _, err := Latest(dir); err != nil {
				t.Error(err)
			}
			entries, _ := os.ReadDir(dir)
			for _, entry := range entries {
				path := filepath.Join(dir, entry.Name())
				if draftName.MatchString(entry.Name()) {
					continue
				} else if _, err := Open(path); err == nil {
					continue
				} else if _, gone := os.Lstat(path); !errors.Is(gone, fs.ErrNotExist) {
					t.Errorf("in part: %v", err)
				}
			}
		}
	})
	for step := range 50 {
		save1(t, dir, 1+step, 1)
	}
	close(done)
	group.Wait()
}
