package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
)

// A draft is a checkpoint that is being written, or one that is being removed: a folder beside the checkpoints, whose
// name no reader takes for one. Its writer holds a lock on the data file, which ends with the writer's process, so that
// others can tell a draft that is being written from one whose writer died.
type draft struct {
	path string
	data *os.File
}

const dataName = "data-00000" + dataSuffix

var draftName = regexp.MustCompile(`^\.step-[0-9]{8,}\.[0-9a-f]{16}\.tmp$`)

// draftPath returns a name for a draft of the checkpoint at the path that nobody else has.
func draftPath(path string) string {
	return filepath.Join(filepath.Dir(path), fmt.Sprintf(".%s.%016x.tmp", filepath.Base(path), rand.Uint64()))
}

// newDraft begins a draft of the checkpoint at the path. Another writer's [removeAbandoned] may take it for abandoned
// before its lock is held: then the next try succeeds.
func newDraft(path string) (*draft, error) {
	var err error
	for range 100 {
		d := &draft{path: draftPath(path)}
		if err = os.Mkdir(d.path, 0o777); err != nil {
			return nil, err
		}
		name := filepath.Join(d.path, dataName)
		if d.data, err = os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o666); err == nil {
			if err = lock(d.data); err == nil || !errors.Is(err, syscall.EWOULDBLOCK) {
				// Where a file system has no locks, nobody else gets one either, and the draft is left alone.
				if err = stillThere(d.data, name); err == nil {
					return d, nil
				}
			}
			d.data.Close()
		}
		os.RemoveAll(d.path)
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.EWOULDBLOCK) {
			break
		}
	}
	return nil, err
}

func stillThere(f *os.File, name string) error {
	ours, err := f.Stat()
	if err != nil {
		return err
	}
	theirs, err := os.Lstat(name)
	if err == nil && !os.SameFile(ours, theirs) {
		err = fs.ErrNotExist
	}
	return err
}

// publish writes the manifest, makes sure that all has reached the disk, and gives the draft the checkpoint's name.
func (d *draft) publish(manifest []byte, path string) error {
	f, err := os.OpenFile(filepath.Join(d.path, manifestName), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	_, err = f.Write(manifest)
	if err := errors.Join(err, f.Sync(), f.Close(), syncFolder(d.path)); err != nil {
		return err
	}
	return os.Rename(d.path, path)
}

// discard ends the draft. One that was published is no longer there to be removed.
func (d *draft) discard() {
	d.data.Close() // first, because a network file system keeps an open file's name in its folder; this ends the lock
	os.RemoveAll(d.path)
}

// removeAbandoned removes the drafts whose writers are gone. What cannot be removed is left to the next try: it costs
// space, no more.
func removeAbandoned(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, entry := range entries {
		if entry.IsDir() && draftName.MatchString(entry.Name()) {
			removeIfAbandoned(filepath.Join(dir, entry.Name()))
		}
	}
}

func removeIfAbandoned(path string) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return
	}
	if len(entries) == 0 {
		os.Remove(path) // not RemoveAll: its writer may be about to make the data file
		return
	}
	for _, entry := range entries {
		if !entry.Type().IsRegular() {
			continue
		}
		f, err := os.OpenFile(filepath.Join(path, entry.Name()), os.O_RDWR, 0)
		if err != nil {
			return
		}
		defer f.Close()
		if lock(f) != nil {
			return // somebody writes it
		}
	}
	os.RemoveAll(path)
}

// lock takes the file's lock, or fails at once if somebody else holds it.
func lock(f *os.File) error {
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
}
