package cache

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// checkSpace returns an ENOSPC error when fewer than need bytes are free in dir.
// It asks before a long download rather than after it.
func checkSpace(dir string, need int64) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return nil // a file system that cannot say is not a reason to refuse
	}
	if free := int64(fs.Bavail) * int64(fs.Bsize); free < need {
		return fmt.Errorf("%d MB needed, %d MB free: %w", need/1e6, free/1e6, syscall.ENOSPC)
	}
	return nil
}
