package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/params"
)

// Damage to one writer's file is an error that names the file, for everybody who reads something in it.
func TestDamagedPart(t *testing.T) {
	whole := []Range{{matrix, 0, 6}, {flag, 0, 1}}
	// What each writer's file has, some or all of it; the last ranges begin in the first file.
	of := [][]Range{{{matrix, 0, 2}}, {{matrix, 6, 2}}, {{matrix, 1, 3}, {flag, 0, 1}}}
	for writer, mine := range of {
		c := saveParts(t, t.TempDir(), 1, twoSpec, three())
		name := filepath.Join(c.Path, fileOf(writer))
		good, err := os.ReadFile(name)
		must.Do(t, err)
		for i := 0; i < len(good); i += 1 + len(good)/40 { // in the header and in the data
			bad := bytes.Clone(good)
			bad[i] ^= 1 << (i % 8)
			must.Do(t, os.WriteFile(name, bad, 0o666))
			what := fmt.Sprintf("a bit of byte %d flipped", i)
			for other, theirs := range of {
				got, err := c.ReadRanges(t.Context(), theirs)
				if other == writer && writer != 1 || other == 2 && writer == 0 { // nothing lies in the second one's
					if wantError(t, what, err, name); got != nil {
						t.Errorf("%s: vectors were handed out", what)
					}
				} else if err != nil {
					t.Errorf("%s, in another file than is read: %v", what, err)
				}
			}
			if writer != 1 {
				_, err := openAndRead(t, c.Path)
				wantError(t, what, err, name)
				_, err = c.ReadRanges(t.Context(), whole)
				wantError(t, what, err, name)
			}
		}
		for what, do := range map[string]func() error{
			"cut":     func() error { return os.WriteFile(name, good[:len(good)-1], 0o666) },
			"longer":  func() error { return os.WriteFile(name, append(bytes.Clone(good), 0), 0o666) },
			"missing": func() error { return os.Remove(name) },
		} {
			must.Do(t, do())
			_, err := Open(c.Path)
			wantError(t, what, err, name)
			_, err = Latest(filepath.Dir(c.Path))
			wantError(t, what, err, name)
			if _, err = c.ReadRanges(t.Context(), mine); writer != 1 {
				wantError(t, what, err, name)
			}
		}
		must.Do(t, os.WriteFile(name, good, 0o666))
		if _, err := openAndRead(t, c.Path); err != nil {
			t.Errorf("restored: %v", err)
		}
		extra := filepath.Join(c.Path, fileOf(3))
		must.Do(t, os.WriteFile(extra, good, 0o666))
		_, err = Open(c.Path)
		wantError(t, "an extra file", err, extra+" is not in the checkpoint's manifest: remove it")
	}
}

// Cancelled at any check, writers and Commit leave what was there before, and a writer may write again.
func TestCancelShared(t *testing.T) {
	dir := t.TempDir()
	good := save1(t, dir, 1, 0)
	s, err := Begin(dir, 2)
	must.Do(t, err)
	var written []Written
	for writer, parts := range three() {
		looks := 1
		for ; ; looks++ {
			w, err := WriteParts(&canceledAfter{t.Context(), looks}, s.Path(), writer, 2, parts)
			if err == nil {
				written = append(written, w)
				break
			}
			if left := listing(t, s.Path()); !errors.Is(err, context.Canceled) || len(left) != 1+writer {
				t.Fatalf("writer %d cancelled at look %d: %v, the draft has %q", writer, looks, err, left)
			}
		}
		if looks <= len(parts) {
			t.Errorf("WriteParts looks at its context %d times for %d parts", looks-1, len(parts))
		}
	}
	_, err = s.Commit(&canceledAfter{t.Context(), 1}, nil, twoSpec, written, 1)
	if got := listing(t, dir); !errors.Is(err, context.Canceled) || !slices.Equal(got, []string{filepath.Base(good)}) {
		t.Errorf("cancelled: %v, there are %q", err, got)
	}
	path := saveParts(t, dir, 2, twoSpec, three()).Path
	for looks := 1; ; looks++ {
		got, err := open(t, path).ReadRanges(&canceledAfter{t.Context(), looks}, []Range{{matrix, 1, 4}})
		if err == nil {
			if looks <= 2 {
				t.Errorf("ReadRanges looks at its context %d times for 2 pieces", looks-1)
			}
			break
		}
		if !errors.Is(err, context.Canceled) || got != nil {
			t.Fatalf("cancelled at look %d: %v, %v", looks, got, err)
		}
	}
}

// A draft is not removed as abandoned, however long its writers take, until the process that began it ends; then the
// next one to begin removes it, with all files of the writers.
func TestSharedAbandoned(t *testing.T) {
	dir := t.TempDir()
	good := save1(t, dir, 1, 0)
	s := must.Get(Begin(dir, 2))(t)
	writeAll(t, s, three())
	for _, begin := range []func(){
		func() { removeAbandoned(dir, time.Time{}) },
		func() {
			other := must.Get(Begin(dir, 3))(t)
			other.Discard()
		},
	} {
		if begin(); len(listing(t, s.Path())) != 4 {
			t.Fatalf("the draft has %q", listing(t, s.Path()))
		}
	}
	s.draft.manifest.Close()  // as the end of its process would
	half := draftPath(s.path) // one whose removal was cut off
	must.Do(t, errors.Join(os.Mkdir(half, 0o777), os.WriteFile(filepath.Join(half, fileOf(1)), nil, 0o666)))
	other := must.Get(Begin(dir, 3))(t)
	if got, want := listing(t, dir), []string{filepath.Base(other.Path()), filepath.Base(good)}; !slices.Equal(got,
		want) {
		t.Errorf("there are %q, want %q", got, want)
	}
	if _, err := WriteParts(t.Context(), s.Path(), 3, 2, nil); err == nil {
		t.Error("a part was written for a checkpoint that nobody will complete")
	}
	other.Discard()
	if got, err := Latest(dir); got != good || err != nil || len(listing(t, dir)) != 1 {
		t.Errorf("Latest = %s, %v; there are %q", got, err, listing(t, dir))
	}
}

const partsDraft = "CHECKPOINT_TEST_DRAFT"

// Commit notices a writer that was killed while it wrote, and ends the draft.
func TestWriterKilled(t *testing.T) {
	spec := params.New("w", dtypes.Int32, 2_000_000)
	if path := os.Getenv(partsDraft); path != "" { // the writer, until the draft is gone
		for writer := 1; ; writer++ {
			if _, err := WriteParts(t.Context(), path, writer, 2,
				[]Part{{spec, 1, tensors.FromShape(spec.Shape)}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	dir := t.TempDir()
	good := save1(t, dir, 1, 0)
	s, err := Begin(dir, 2)
	must.Do(t, err)
	mine := must.Get(WriteParts(t.Context(), s.Path(), 0, 2, []Part{{spec, 0, tensors.FromValue([]int32{1})}}))(t)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestWriterKilled$")
	cmd.Env = append(os.Environ(), partsDraft+"="+s.Path())
	must.Do(t, cmd.Start())
	for deadline := time.Now().Add(time.Minute); len(listing(t, s.Path())) < 3 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(time.Duration(rand.IntN(20_000)) * time.Microsecond)
	if err := cmd.Process.Kill(); err != nil {
		t.Errorf("the writer ended by itself: %v", err)
	}
	cmd.Wait()
	_, err = s.Commit(t.Context(), nil, params.Tree{spec}, []Written{mine}, 1)
	wantError(t, "killed", err, `tensor "w": its 1 pieces do not cover`)
	if got := listing(t, dir); !slices.Equal(got, []string{filepath.Base(good)}) {
		t.Errorf("there are %q", got)
	}
}
