package main

import (
	"os"

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
