package main

import (
	"fmt"
	"os"
	"strconv"
	"time"
)

// Environment variables, since GoNB gives gopls no flags of ours.
const (
	envIdle   = "SHARDBOOK_GOPLS_IDLE"   // a duration such as 5m
	envMemory = "SHARDBOOK_GOPLS_MEMORY" // MiB
)

// settings are the limits of a gopls.
type settings struct {
	command []string
	idle    time.Duration       // how long it runs without a request
	answer  time.Duration       // how long a request may take
	memory  int                 // MiB that its garbage collector keeps to; at twice that it is ended
	rss     func(pid int) int64 // the memory of a process in bytes
	err     error               // if not nil, the settings are wrong, and each request is answered so
}

// environment reads the settings for a program.
//
// By default gopls may use 400 MiB. It needs that if its cache is empty, and half of it otherwise. GoNB waits 8 s for
// an answer.
func environment(gopls string) settings {
	s := settings{command: []string{gopls}, idle: 5 * time.Minute, answer: 6 * time.Second, memory: 400, rss: rss}
	var err error
	if text := os.Getenv(envIdle); text != "" {
		if s.idle, err = time.ParseDuration(text); err != nil || s.idle <= 0 {
			s.err = fmt.Errorf("%s=%q: set it to a time such as 5m, or to nothing", envIdle, text)
		}
	}
	if text := os.Getenv(envMemory); text != "" {
		if s.memory, err = strconv.Atoi(text); err != nil || s.memory <= 0 {
			s.err = fmt.Errorf("%s=%q: set it to a number of MiB, or to nothing for 400", envMemory, text)
		}
	}
	return s
}

// options are those of gopls.
//
// A second after the last change it would check all packages of the checkout, which takes a minute and more than 1 GB,
// for diagnostics that nobody reads. The delay puts that off until it has been ended.
func (s settings) options() object {
	return object{"diagnosticsDelay": (s.idle + time.Minute).String()}
}
