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

// A draft is a checkpoint that is being written, or one that is being removed: a folder beside the checkpoints, whose
// name no reader takes for one. Whoever began it holds a lock on its manifest, empty until the end, which goes with the
// process, so that others can tell a draft that is being written from one that nobody will complete. Those who only
// write data files into it hold none: without the manifest their files are of no use.
//
// On network file systems a lock may hold on its own host only. So the name of a draft says on which it was begun, and
// the drafts of other hosts are left alone until nothing in them has changed for a day, lock or not.
type draft struct {
	path     string
	manifest *os.File
}

// Drafts of version 0.1.0 name no host.
var draftName = regexp.MustCompile(`^\.(step-[0-9]{8,})\.(?:([0-9a-f]{16})\.)?[0-9a-f]{16}\.tmp$`)

// quiet is how long nothing in another host's draft has changed when nobody will complete it.
const quiet = 24 * time.Hour

// host is this host, or rather its running kernel: what keeps locks, and has lost them after a reboot. Where the kernel
// has no such number, every process counts as a host of its own.
var host = sync.OnceValue(func() string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if digits := strings.ReplaceAll(string(id), "-", ""); len(digits) >= 16 {
		return digits[:16]
	}
	return fmt.Sprintf("%016x", rand.Uint64())
})

// draftPath returns a name for a draft of the checkpoint at the path that nobody else has.
func draftPath(path string) string { return draftPathOf(host(), path) }

func draftPathOf(host, path string) string {
	return filepath.Join(filepath.Dir(path), fmt.Sprintf(".%s.%s.%016x.tmp", filepath.Base(path), host, rand.Uint64()))
}

// isDraft reports whether the name is one of a draft of the step.
func isDraft(name string, step int) bool {
	match := draftName.FindStringSubmatch(name)
	return match != nil && match[1] == folderName(step)
}

// begin begins a draft of the checkpoint at the path, which must not be there, in a folder that it makes if need be.
func begin(path string) (*draft, error) {
	if _, err := os.Lstat(path); err == nil {
		return nil, fs.ErrExist
	}
	dir := filepath.Dir(path)
	if err := makeFolder(dir); err != nil {
		return nil, err
	}
	removeAbandoned(dir, time.Time{}) // this host's, before the new one needs the room
	d, err := newDraft(path)
	if err != nil {
		return nil, err
	}
	// Now is what the file system's clock says, which dates the other drafts too.
	if info, err := d.manifest.Stat(); err == nil {
		removeAbandoned(dir, info.ModTime().Add(-quiet))
	}
	return d, nil
}

// newDraft makes a draft of the checkpoint at the path. Another writer's [removeAbandoned] may take it for abandoned
// before its lock is held: then the next try succeeds.
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
				// Where a file system has no locks, nobody else gets one either, and the draft is left alone.
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

// publish writes the manifest, makes sure that all has reached the disk, and gives the draft the checkpoint's name.
func (d *draft) publish(manifest []byte, path string) error {
	if _, err := d.manifest.Write(manifest); err != nil {
		return err
	}
	if err := errors.Join(d.manifest.Sync(), syncFolder(d.path)); err != nil {
		return err
	}
	return os.Rename(d.path, path)
}

// discard ends the draft. One that was published is no longer there to be removed.
func (d *draft) discard() {
	// first, because a network file system keeps an open file's name in its folder; this ends the lock
	d.manifest.Close()
	os.RemoveAll(d.path)
}

// removeAbandoned removes the drafts that nobody will complete: of this host those that have no lock, and of others
// those that besides have not changed since. What cannot be removed is left to the next try: it costs space, no more.
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
	// The manifest is made before any other file. One that is not there after others were seen was removed, by somebody
	// who did not come to the end.
	f, _, err := openWith(filepath.Join(path, manifestName), os.O_RDWR)
	if err == nil {
		defer f.Close()
		if lock(f) != nil {
			return // somebody writes it
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return
	} else if len(entries) == 0 {
		os.Remove(path) // not RemoveAll: its writer may be about to make the manifest
		return
	}
	os.RemoveAll(path)
}

// lock takes the file's lock, or fails at once if somebody else holds it.
func lock(f *os.File) error {
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
}
