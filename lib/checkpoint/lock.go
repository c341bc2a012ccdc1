package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// ErrLocked is wrapped by the error of [Lock] if another process has the lock.
var ErrLocked = errors.New("only one run at a time can save there: wait for its end, or choose another folder")

// lockName is a file that is not removed on release: that might remove another process's lock.
const lockName = ".lock"

// Lock reserves a folder of checkpoints for one run until it calls release or the process ends. If another process has
// it, the error wraps [ErrLocked] and names the process. It excludes only others that call Lock; [Save] does not, since
// ranks save together. If the folder cannot be written to, or its file system has no locks, it excludes nobody.
func Lock(dir string) (release func(), err error) {
	name := filepath.Join(dir, lockName)
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, fileMode)
	switch {
	case errors.Is(err, os.ErrPermission) || errors.Is(err, syscall.EROFS):
		return func() {}, nil
	case errors.Is(err, syscall.ELOOP):
		return nil, notRegular(name)
	case err != nil:
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	if err := lock(f); errors.Is(err, syscall.EWOULDBLOCK) {
		defer f.Close()
		holder, _ := io.ReadAll(io.LimitReader(f, 300))
		return nil, fmt.Errorf("checkpoint: %s is in use by process %s: %w", dir, bytes.TrimSpace(holder), ErrLocked)
	}
	if f.Truncate(0) == nil { // else the lock just has no name in it
		fmt.Fprintf(f, "%d on %s\n", os.Getpid(), host())
	}
	return func() { f.Close() }, nil
}
