package cache

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gofrs/flock"
	"golang.org/x/sys/unix"
)

// Progress receives the progress of an installation: the step done of total (0 if unknown), and its description. It may
// be nil.
type Progress func(done, total int, what string)

// Part is something to install: a plugin, a Python environment, a set of tools.
//
// Each attempt installs into a new folder, Root/Name/Version-RANDOM. The file Root/Name/Version.complete, written last
// and atomically, names the valid folder. So the folder of an interrupted attempt is never used, even if a program of
// that attempt still writes there.
type Part struct {
	Root    string // the cache folder
	Name    string // of the part's folder in it, also shown to the user
	Version string // changes whenever the contents would
	Bytes   int64  // free space the installation needs at its peak
	// Install fills dir, which exists and is empty. Paths inside dir are final: dir is not moved afterwards.
	Install func(ctx context.Context, dir string, report Progress) error
}

const (
	completeSuffix = ".complete"
	lockSuffix     = ".lock"
)

// lockPoll is the interval at which a process checks whether another one has finished its installation.
const lockPoll = 100 * time.Millisecond

// unusedFor is the time without use after which installing another version removes a version.
const unusedFor = 30 * 24 * time.Hour

// path returns the path of the version's file or folder with that ending.
func (p Part) path(ending string) string {
	return filepath.Join(p.Root, p.Name, p.Version+ending)
}

// Installed returns the part's folder, and whether it is complete.
func (p Part) Installed() (dir string, ok bool) {
	name, err := os.ReadFile(p.path(completeSuffix))
	if err != nil || len(name) == 0 {
		return "", false
	}
	dir = filepath.Join(p.Root, p.Name, string(name))
	info, err := os.Stat(dir)
	return dir, err == nil && info.IsDir()
}

// Begun reports whether an installation has begun and is not complete.
func (p Part) Begun() bool {
	if _, ok := p.Installed(); ok {
		return false
	}
	return len(p.tries()) > 0
}

// tries lists all folders of the version.
func (p Part) tries() []string {
	var tries []string
	entries, _ := os.ReadDir(filepath.Join(p.Root, p.Name))
	for _, entry := range entries {
		if entry.IsDir() && strings.HasPrefix(entry.Name(), p.Version+"-") {
			tries = append(tries, filepath.Join(p.Root, p.Name, entry.Name()))
		}
	}
	return tries
}

// Ensure installs the part if needed, and returns its folder. If several processes call it at once, one installs and
// the others wait. An interrupted installation starts again.
func (p Part) Ensure(ctx context.Context, report Progress) (string, error) {
	if dir, ok := p.Installed(); ok {
		p.used()
		return dir, nil
	}
	if report == nil {
		report = func(int, int, string) {}
	}
	if err := os.MkdirAll(filepath.Join(p.Root, p.Name), 0o755); err != nil {
		return "", p.failed(err)
	}
	lock := flock.New(p.path(lockSuffix))
	if held, _ := lock.TryLock(); !held {
		report(0, 0, "waiting for another process that installs it")
		if _, err := lock.TryLockContext(ctx, lockPoll); err != nil {
			return "", p.failed(err)
		}
	}
	defer lock.Unlock()
	if dir, ok := p.Installed(); ok {
		return dir, nil
	}
	dir, err := p.install(ctx, report)
	if err != nil {
		return "", p.failed(err)
	}
	p.removeUnused()
	return dir, nil
}

func (p Part) install(ctx context.Context, report Progress) (string, error) {
	for _, cutOff := range p.tries() {
		os.RemoveAll(cutOff) // only to free space
	}
	if err := checkSpace(filepath.Join(p.Root, p.Name), p.Bytes); err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(filepath.Join(p.Root, p.Name), p.Version+"-")
	if err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	if err := p.Install(ctx, dir, report); err != nil {
		os.RemoveAll(dir)
		return "", err
	}
	// The contents must reach the disk before the file that marks them complete.
	unix.Sync()
	aside := p.path(completeSuffix + ".new")
	if err := os.WriteFile(aside, []byte(filepath.Base(dir)), 0o644); err != nil {
		return "", err
	}
	return dir, os.Rename(aside, p.path(completeSuffix))
}

// used records that the version was used.
func (p Part) used() {
	now := time.Now()
	os.Chtimes(p.path(completeSuffix), now, now) // if this fails, the version may be removed and installed again
}

// removeUnused removes other versions of the part that nobody has used for long.
func (p Part) removeUnused() {
	folder := filepath.Join(p.Root, p.Name)
	files, _ := filepath.Glob(filepath.Join(folder, "*"+completeSuffix))
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil || time.Since(info.ModTime()) < unusedFor {
			continue
		}
		other := Part{Root: p.Root, Name: p.Name, Version: strings.TrimSuffix(filepath.Base(file), completeSuffix)}
		os.Remove(file)
		for _, dir := range other.tries() {
			os.RemoveAll(dir)
		}
	}
}

// failed returns an error with the part and what to do.
func (p Part) failed(err error) error {
	if todo := remedy(err); todo != "" {
		return fmt.Errorf("installing %s in %s: %w; %s", p.Name, p.Root, err, todo)
	}
	return fmt.Errorf("installing %s: %w", p.Name, err)
}

// remedy returns what to do about a file system error, else "".
func remedy(err error) string {
	switch {
	case errors.Is(err, syscall.ENOSPC):
		return "free some space, or set " + EnvDir + " to a folder on another disk"
	case errors.Is(err, os.ErrPermission), errors.Is(err, syscall.EROFS), errors.Is(err, syscall.ENOTDIR):
		return "set " + EnvDir + " to a folder that may be written"
	}
	return ""
}
