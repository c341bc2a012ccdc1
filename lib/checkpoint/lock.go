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

// ErrLocked is in the error of [Lock] where somebody else has the lock.
var ErrLocked = errors.New("one run at a time saves there: wait for its end, or choose another folder")

// lockName is a file that stays when the lock is released: whoever removed it might remove another's.
const lockName = ".lock"

// Lock takes a folder of checkpoints for one run, until it is released or the process ends. Where another process has
// it, the error is [ErrLocked] and names the process. Only those who ask are kept out: [Save] does not, since ranks
// save together. Nobody is where the folder cannot be written to, or its file system has no locks.
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
	if f.Truncate(0) == nil { // or the lock has no name on it
		fmt.Fprintf(f, "%d on %s\n", os.Getpid(), host())
	}
	return func() { f.Close() }, nil
}
