package main

import (
	"os"
	"time"
)

// pollEnd is awaitEnd where the system cannot tell: a process whose parent has ended gets another.
func pollEnd(parent int) {
	for os.Getppid() == parent {
		time.Sleep(time.Second)
	}
}
