package main

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// awaitEnd returns when the process that started this one has ended.
func awaitEnd(parent int) {
	fd, err := unix.PidfdOpen(parent, 0)
	if err != nil || os.Getppid() != parent { // it has ended before it could be opened
		if err == nil || err == unix.ESRCH {
			return
		}
		pollEnd(parent)
		return
	}
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if err != unix.EINTR {
			return
		}
	}
}

// endWithParent has a process end with the one that starts it, also if that is killed.
func endWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
