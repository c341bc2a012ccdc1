package tests

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// stderrOf opens another process's standard error: if possible the same open file, so that the two outputs do not
// overwrite each other.
func stderrOf(pid int) (*os.File, error) {
	process, err := unix.PidfdOpen(pid, 0)
	if err == nil {
		defer unix.Close(process)
		var same int
		if same, err = unix.PidfdGetfd(process, 2, 0); err == nil {
			return os.NewFile(uintptr(same), "stderr"), nil
		}
	}
	return os.OpenFile(fmt.Sprintf("/proc/%d/fd/2", pid), os.O_WRONLY|os.O_APPEND, 0)
}
