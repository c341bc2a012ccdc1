package main

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// hostRun is a command that starts ranks on hosts, and what all have said so far, on both outputs.
type hostRun struct {
	t     *testing.T
	cmd   *exec.Cmd
	ctx   context.Context
	ended chan struct{}

	mu   sync.Mutex
	said strings.Builder
}

// startOnHosts starts a command line, in a process group of its own. It ends after two minutes at most, and with the
// test.
func startOnHosts(t *testing.T, line []string) *hostRun {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	r := &hostRun{t: t, cmd: exec.CommandContext(ctx, line[0], line[1:]...), ctx: ctx, ended: make(chan struct{})}
	r.cmd.Env = append(os.Environ(), "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	r.cmd.Cancel = func() error { return syscall.Kill(-r.cmd.Process.Pid, syscall.SIGKILL) }
	r.cmd.WaitDelay = 10 * time.Second
	r.cmd.Stdout, r.cmd.Stderr = r, r
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(r.ended)
		r.cmd.Wait() // its error is in the state
	}()
	return r
}

func (r *hostRun) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.said.Write(p)
}

func (r *hostRun) output() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.said.String()
}

// lines are the whole lines said so far in which a pattern is found.
func (r *hostRun) lines(pattern string) (found []string) {
	look := regexp.MustCompile(pattern)
	for line := range strings.Lines(r.output()) {
		if strings.HasSuffix(line, "\n") && look.MatchString(line) {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found
}

// until waits for a condition. It fails the test if the run ends without.
func (r *hostRun) until(what string, holds func() bool) {
	r.t.Helper()
	for !holds() {
		select {
		case <-r.ended:
			if !holds() {
				r.t.Fatalf("it ended before %s: %v\n%s", what, r.cmd.ProcessState, r.output())
			}
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// status waits for the end, and returns the exit status.
func (r *hostRun) status() int {
	r.t.Helper()
	<-r.ended
	if r.ctx.Err() != nil {
		r.t.Fatalf("%q did not end within two minutes:\n%s", r.cmd.Args, r.output())
	}
	return r.cmd.ProcessState.ExitCode()
}
