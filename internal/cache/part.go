package cache

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/gofrs/flock"
)

// Progress is told how far an installation has come: done of total steps (total
// is 0 where it is not known) and what is being done. It may be nil.
type Progress func(done, total int, what string)

// Part is something to install: a plugin, a Python environment, a set of tools.
type Part struct {
	Name    string // folder name, also shown to the user
	Version string // changes whenever the contents would
	Bytes   int64  // free space the installation needs at its peak
	// Install fills dir, which exists and is empty. Paths inside dir are final:
	// dir is not moved afterwards.
	Install func(ctx context.Context, dir string, report Progress) error
}

// marker is written last: a folder without it is half-installed and never used.
const marker = ".complete"

// lockPoll is how often a process that waits for another's installation looks again.
const lockPoll = 100 * time.Millisecond

// Dir is the folder of the part under the cache folder root.
func (p Part) Dir(root string) string { return filepath.Join(root, p.Name, p.Version) }

// Installed reports whether the part is there and complete.
func (p Part) Installed(root string) bool {
	text, err := os.ReadFile(filepath.Join(p.Dir(root), marker))
	return err == nil && string(text) == p.Version
}

// Ensure installs the part unless it is there already, and returns its folder.
// Of several processes that call it at once, one installs and the others wait
// for it. An installation that was cut off is removed and made anew.
func (p Part) Ensure(ctx context.Context, root string, report Progress) (string, error) {
	dir := p.Dir(root)
	if p.Installed(root) {
		return dir, nil
	}
	if report == nil {
		report = func(int, int, string) {}
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", p.failed(root, err)
	}
	lock := flock.New(dir + ".lock")
	if held, _ := lock.TryLock(); !held {
		report(0, 0, "waiting for another process that installs it")
		if _, err := lock.TryLockContext(ctx, lockPoll); err != nil {
			return "", p.failed(root, err)
		}
	}
	defer lock.Unlock()
	if p.Installed(root) {
		return dir, nil
	}
	if err := p.install(ctx, root, report); err != nil {
		return "", p.failed(root, err)
	}
	return dir, nil
}

func (p Part) install(ctx context.Context, root string, report Progress) error {
	dir := p.Dir(root)
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := checkSpace(filepath.Dir(dir), p.Bytes); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := p.Install(ctx, dir, report); err != nil {
		os.RemoveAll(dir) // only to free space: without its marker it is not used anyway
		return err
	}
	// The marker appears whole or not at all: written aside, then renamed.
	aside := filepath.Join(dir, marker+".new")
	if err := os.WriteFile(aside, []byte(p.Version), 0o644); err != nil {
		return err
	}
	return os.Rename(aside, filepath.Join(dir, marker))
}

// failed says in one sentence which part failed and what to do.
func (p Part) failed(root string, err error) error {
	if todo := remedy(err); todo != "" {
		return fmt.Errorf("installing %s in %s: %w; %s", p.Name, root, err, todo)
	}
	return fmt.Errorf("installing %s: %w", p.Name, err)
}

// remedy says what to do about an error of the file system, "" about others.
func remedy(err error) string {
	switch {
	case errors.Is(err, syscall.ENOSPC):
		return "free some space, or set " + EnvDir + " to a folder on another disk"
	case errors.Is(err, os.ErrPermission), errors.Is(err, syscall.EROFS), errors.Is(err, syscall.ENOTDIR):
		return "set " + EnvDir + " to a folder that may be written"
	}
	return ""
}
