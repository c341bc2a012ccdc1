package main

import (
	"fmt"
	"os"
	"syscall"
)

// endWithParent has a process killed when this one is, which GoNB does at its end. gopls may be too busy to see that
// its input has ended.
func endWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// rss returns the resident memory of a process in bytes, 0 if it has ended.
func rss(pid int) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	var total, resident int64
	fmt.Sscan(string(text), &total, &resident)
	return resident * int64(os.Getpagesize())
}
