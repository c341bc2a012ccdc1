package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardbook/shardbook/lib/checkpoint"
)

// envCompiling has the command, run by a test, write to this file descriptor.
const envCompiling = "SHARDBOOK_TEST_COMPILING"

// tellCompiling writes a byte to a file once training has begun and XLA has compiled a program for a second, and so is
// at one that takes long: from then on nothing but a signal ends the process soon.
func tellCompiling(file *os.File) {
	for seconds := 0; seconds < 2; time.Sleep(time.Second) {
		stacks := make([]byte, 8<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		if bytes.Contains(stacks, []byte("(*training).loop(")) && bytes.Contains(stacks,
			[]byte("PJRT_Client_Compile(")) {
			seconds++
		} else {
			seconds = 0
		}
	}
	file.Write([]byte{1})
}

// A process that compiles, which XLA does not interrupt, ends after the grace or at the second signal. What was saved
// before is whole.
func TestSignalWhileCompiling(t *testing.T) {
	dir := t.TempDir()
	folder, text := filepath.Join(dir, "run"), strings.Join(small, " ")
	long := append(strings.Fields(strings.Replace(text, "--seq 8", "--seq 512", 1)), "--batch", "1", "--checkpoint",
		folder)
	trained(t, append(long, "--steps", "1")...)
	compiling := func(grace string) *process {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		// A ring of 256 devices is a program that takes half a minute to compile.
		c := begin(t, func(cmd *exec.Cmd) {
			cmd.Env, cmd.ExtraFiles = append(cmd.Env, envCompiling+"=3"), []*os.File{w}
		}, slices.Concat([]string{os.Args[0]}, long, []string{"--resume", "--steps", "2", "--seq-parallel", "256",
			"--grace", grace})...)
		w.Close()
		if _, err := r.Read(make([]byte, 1)); err != nil {
			t.Fatalf("it has ended before it compiled: status %d: %s", c.status(), c.output())
		}
		return c
	}
	t.Run("grace", func(t *testing.T) {
		c := compiling("0s")
		c.Process.Signal(syscall.SIGTERM)
		c.ends(syscall.SIGTERM, "ended by SIGTERM: it was still at work")
	})
	t.Run("second", func(t *testing.T) {
		c := compiling("1h")
		go func() {
			for c.Process.Signal(syscall.SIGINT) == nil {
				time.Sleep(sameSignal)
			}
		}()
		c.ends(syscall.SIGINT, "ended by SIGINT: at once, as a second signal came")
	})
	path, err := checkpoint.Latest(folder)
	if err != nil {
		t.Fatal(err)
	}
	if c, err := checkpoint.Open(path); err != nil || c.Step != 1 {
		t.Errorf("the newest checkpoint is %s, error %v", path, err)
	}
}

// Who waits for input ends at once.
func TestSignalWhileReading(t *testing.T) {
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	c := begin(t, func(cmd *exec.Cmd) { cmd.Stdin = in }, os.Args[0], "schedule", "--read", "-")
	in.Close()
	if _, err := out.Write(make([]byte, 1<<20)); err != nil { // more than a pipe holds: it has read some
		t.Fatal(err)
	}
	c.Process.Signal(syscall.SIGTERM)
	c.ends(syscall.SIGTERM, "ended by SIGTERM")
}

// When a process that does not end by itself is ended, and with which status.
func TestSignalWatch(t *testing.T) {
	type sent struct {
		at time.Duration
		is syscall.Signal
	}
	for name, c := range map[string]struct {
		sent   []sent
		saving time.Duration // from the beginning
		at     time.Duration
		status int
	}{
		"grace":    {[]sent{{0, syscall.SIGTERM}}, 0, usualGrace, 143},
		"second":   {[]sent{{0, syscall.SIGTERM}, {time.Second, syscall.SIGINT}}, 0, time.Second, 130},
		"the same": {[]sent{{0, syscall.SIGTERM}, {sameSignal / 2, syscall.SIGTERM}}, 0, usualGrace, 143},
		"saving":   {[]sent{{0, syscall.SIGHUP}}, time.Minute, time.Minute, 129},
		"second, saving": {[]sent{{0, syscall.SIGTERM}, {time.Second, syscall.SIGTERM}}, time.Minute, time.Second,
			143},
		"from mpirun":       {[]sent{{0, syscall.SIGUSR1}, {time.Hour, syscall.SIGTERM}}, 0, time.Hour, 143},
		"saving, no longer": {[]sent{{time.Second, syscall.SIGTERM}}, time.Second, time.Second + usualGrace, 143},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin, killed := time.Now(), false
				var message strings.Builder
				w := newSignalWatch(&message, func(status int) {
					if at := time.Since(begin); at != c.at || status != c.status || !killed {
						t.Errorf("status %d after %v, others killed: %v; want status %d after %v", status, at, killed,
							c.status, c.at)
					}
				})
				w.before(func() { killed = true })
				if c.saving > 0 {
					time.AfterFunc(c.saving, w.save())
				}
				caught, ended := make(chan os.Signal, len(c.sent)), make(chan struct{})
				for _, s := range c.sent {
					time.AfterFunc(s.at, func() { caught <- s.is })
				}
				ctx, cancel := context.WithCancel(t.Context())
				go func() {
					defer close(ended)
					w.watch(caught, cancel)
				}()
				<-ctx.Done()
				if at := time.Since(begin); at != c.sent[0].at {
					t.Errorf("the context ended after %v", at)
				}
				<-ended
				if !strings.HasPrefix(message.String(), "shardbook: ended by SIG") || strings.Count(message.String(),
					"\n") != 1 {
					t.Errorf("message %q", message.String())
				}
			})
		})
	}
}
