// Package command runs the programs that set-up needs, and says in one sentence why
// one failed.
package command

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// Command is a program to run.
type Command struct {
	Name   string
	Args   []string
	Dir    string            // "" is the working folder
	Env    []string          // added to the process's own
	OnLine func(line string) // told each line that it prints; may be nil
	Advice string            // what to do if it fails
}

// Run runs the command. Its error is one sentence that ends with the reason the
// program printed.
func (c Command) Run(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, c.Name, c.Args...)
	cmd.Dir = c.Dir
	cmd.Env = append(os.Environ(), c.Env...)
	// A program's own children, as venv has, are stopped with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return err
	}
	var said Reason
	lines := bufio.NewScanner(pipe)
	for lines.Scan() {
		if c.OnLine != nil {
			c.OnLine(lines.Text())
		}
		said.Hear(lines.Text())
	}
	io.Copy(io.Discard, pipe) // after a line that is too long: a program that cannot print would never end
	err = cmd.Wait()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil:
		return nil
	case strings.Contains(said.Text(), "No space left on device"):
		err = syscall.ENOSPC // which has advice of its own
	}
	err = fmt.Errorf("%s failed: %s (%w)", filepath.Base(c.Name), said.Text(), err)
	if c.Advice != "" {
		err = fmt.Errorf("%w: %s", err, c.Advice)
	}
	return err
}

// Reason picks out of a program's output the line that says why it failed.
type Reason struct{ last, err string }

// Hear takes the next line.
func (r *Reason) Hear(line string) {
	line = strings.TrimSpace(line)
	if line != "" {
		r.last = line
	}
	if strings.HasPrefix(line, "ERROR") || strings.HasPrefix(line, "error") {
		r.err = line
	}
}

// Text is the last line that begins as an error does, or else the last.
func (r *Reason) Text() string {
	if r.err != "" {
		return r.err
	}
	return r.last
}
