//go:build !linux

package main

func awaitEnd(parent int) { pollEnd(parent) }
