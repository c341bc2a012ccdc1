package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A draft is a folder beside the checkpoints in which a checkpoint is being written or removed; readers ignore its
// name. Its creator holds a lock on the manifest, which is empty until the end. The lock ends with the process, so
// others can tell a draft that is being written from an abandoned one. Processes that only write data files into it
// hold no lock: without the manifest their files are useless.
//
// On network file systems a lock may be visible only on its own host. So the name of a draft contains its host, and the
// drafts of other hosts are not removed until nothing in them has changed for a day, locked or not.
type draft struct {
	path     string
	manifest *os.File
}

// Drafts of version 0.1.0 name no host.
var draftName = regexp.MustCompile(`^\.(step-[0-9]{8,})\.(?:([0-9a-f]{16})\.)?[0-9a-f]{16}\.tmp$`)

// quiet is how long nothing has changed in another host's abandoned draft.
const quiet = 24 * time.Hour

// host identifies the running kernel, since a reboot ends all locks. Where it has no identifier, every process counts
// as a host of its own.
var host = sync.OnceValue(func() string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if digits := strings.ReplaceAll(string(id), "-", ""); len(digits) >= 16 {
		return digits[:16]
	}
	return fmt.Sprintf("%016x", rand.Uint64())
})

// draftPath returns a unique name for a draft of the checkpoint at the path.
func draftPath(path string) string { return draftPathOf(host(), path) }

func draftPathOf(host, path string) string {
	return filepath.Join(filepath.Dir(path), fmt.Sprintf(".%s.%s.%016x.tmp", filepath.Base(path), host, rand.Uint64()))
}

// isDraft reports whether the name is that of a draft of the step.
func isDraft(name string, step int) bool {
	match := draftName.FindStringSubmatch(name)
	return match != nil && match[1] == folderName(step)
}

// begin begins a draft of the checkpoint at the path, which must not exist. It creates the folder if necessary.
func begin(path string) (*draft, error) {
	if _, err := os.Lstat(path); err == nil {
		return nil, fs.ErrExist
	}
	dir := filepath.Dir(path)
	if err := makeFolder(dir); err != nil {
		return nil, err
	}
	removeAbandoned(dir, time.Time{}) // of this host, before the new one needs the space
	d, err := newDraft(path)
	if err != nil {
		return nil, err
	}
	// The file system's clock, which also dates the other drafts.
	if info, err := d.manifest.Stat(); err == nil {
		removeAbandoned(dir, info.ModTime().Add(-quiet))
	}
	return d, nil
}

// newDraft creates a draft of the checkpoint at the path. Another writer's [removeAbandoned] may remove it before its
// lock is held; then the next attempt succeeds.
func newDraft(path string) (*draft, error) {
	var err error
	for range 100 {
		d := &draft{path: draftPath(path)}
		if err = os.Mkdir(d.path, folderMode); err != nil {
			return nil, err
		}
		name := filepath.Join(d.path, manifestName)
		if d.manifest, err = os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_RDWR, fileMode); err == nil {
			if err = lock(d.manifest); err == nil || !errors.Is(err, syscall.EWOULDBLOCK) {
				// Where a file system has no locks, nobody else gets one either, and the draft is not removed.
				if err = stillThere(d.manifest, name); err == nil {
					return d, nil
				}
			}
			d.manifest.Close()
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

// publish writes the manifest, syncs everything to disk, and renames the draft to the checkpoint's name.
func (d *draft) publish(manifest []byte, path string) error {
	if _, err := d.manifest.Write(manifest); err != nil {
		return err
	}
	if err := errors.Join(d.manifest.Sync(), syncFolder(d.path)); err != nil {
		return err
	}
	return os.Rename(d.path, path)
}

// discard removes the draft, unless it was published.
func (d *draft) discard() {
	// First, since a network file system keeps an open file's name in its folder. This releases the lock.
	d.manifest.Close()
	os.RemoveAll(d.path)
}

// removeAbandoned removes abandoned drafts: those of this host that are not locked, and those of other hosts that have
// also not changed since. What cannot be removed only costs space, and is left to the next attempt.
func removeAbandoned(dir string, since time.Time) {
	entries, _ := os.ReadDir(dir)
	for _, entry := range entries {
		match := draftName.FindStringSubmatch(entry.Name())
		if match == nil || !entry.IsDir() {
			continue
		}
		path := filepath.Join(dir, entry.Name())
		if match[2] == host() || unchanged(path, since) {
			removeIfAbandoned(path)
		}
	}
}

// unchanged reports whether neither the folder nor anything in it has changed since.
func unchanged(path string, since time.Time) bool {
	err := filepath.WalkDir(path, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err == nil && info.ModTime().After(since) {
			err = errors.New("changed")
		}
		return err
	})
	return err == nil
}

func removeIfAbandoned(path string) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return
	}
	// The manifest is created before any other file. If it is gone and others are there, somebody else was interrupted
	// while removing the draft.
	f, _, err := openWith(filepath.Join(path, manifestName), os.O_RDWR)
	if err == nil {
		defer f.Close()
		if lock(f) != nil {
			return // it is being written
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return
	} else if len(entries) == 0 {
		os.Remove(path) // not RemoveAll: its writer may be about to create the manifest
		return
	}
	os.RemoveAll(path)
}

// lock locks the file, or fails at once if another process has locked it.
func lock(f *os.File) error {
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
}
