package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A job under mpirun that is interrupted saves and ends, and the same command goes on with it, for the losses of one
// device.
func TestLaunchInterrupted(t *testing.T) {
	program := mpiCommand(t)
	folder := t.TempDir()
	log := filepath.Join(folder, "log")
	job := append(slices.Clone(small[1:]), "--steps", "40")
	want := unclipped(t)
	job = append(job, "--log", log, "--link", "1e6") // slow, so that it does not end before
	args := append([]string{"launch", "--slots", "2", "--checkpoint", filepath.Join(folder, "run"), "--"}, job...)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	launched := func(interrupt bool) (said string, status int) {
		cmd := exec.CommandContext(ctx, program, args...)
		cmd.Env = append(os.Environ(), asRootToo...)
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // it ends its ranks
		cmd.WaitDelay = time.Minute
		var output strings.Builder
		cmd.Stdout, cmd.Stderr = &output, &output
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for interrupt && ctx.Err() == nil {
			if text, _ := os.ReadFile(log); bytes.Count(text, []byte("\n")) >= 3 {
				cmd.Process.Signal(syscall.SIGTERM)
				interrupt = false
			}
			time.Sleep(10 * time.Millisecond)
		}
		cmd.Wait()
		return output.String(), cmd.ProcessState.ExitCode()
	}
	if said, status := launched(true); status != 75 || !strings.Contains(said, "which is saved") ||
		strings.Contains(said, "start 2") {
		t.Fatalf("interrupted: status %d, want 75, and that a step is saved: %s", status, said)
	}
	said, status := launched(false)
	if status != 0 || strings.Contains(said, "from step 0\n") || !strings.Contains(said, "done at the first start") {
		t.Fatalf("again: status %d, want 0, and a step that it went on from: %s", status, said)
	}
	checkLog(t, log, want.Losses)
}
