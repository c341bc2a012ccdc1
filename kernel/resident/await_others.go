//go:build !linux

package main

import "syscall"

func awaitEnd(parent int) { pollEnd(parent) }

func endWithParent() *syscall.SysProcAttr { return nil }
