// Package command runs the programs that set-up needs. If one fails, its error is one sentence with the reason.
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
	Env    []string          // added to the environment of this process
	OnLine func(line string) // called with each line that it prints; may be nil
	Advice string            // what to do if it fails
}

// Run runs the command. Its error is one sentence with the reason that the program printed, and the advice.
func (c Command) Run(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, c.Name, c.Args...)
	cmd.Dir = c.Dir
	cmd.Env = append(os.Environ(), c.Env...)
	// Also stops the program's children, such as those of venv.
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
	var reason Reason
	lines := bufio.NewScanner(pipe)
	for lines.Scan() {
		if c.OnLine != nil {
			c.OnLine(lines.Text())
		}
		reason.Hear(lines.Text())
	}
	io.Copy(io.Discard, pipe) // after a line that is too long; otherwise the program would block
	err = cmd.Wait()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil:
		return nil
	case strings.Contains(reason.Text(), "No space left on device"):
		err = syscall.ENOSPC // which callers recognize
	}
	err = fmt.Errorf("%s failed: %s (%w)", filepath.Base(c.Name), reason.Text(), err)
	if c.Advice != "" {
		err = fmt.Errorf("%w: %s", err, c.Advice)
	}
	return err
}

// Reason finds the line of a program's output that says why it failed.
type Reason struct{ last, err string }

// Hear adds the next line.
func (r *Reason) Hear(line string) {
	line = strings.TrimSpace(line)
	if line != "" {
		r.last = line
	}
	if strings.HasPrefix(line, "ERROR") || strings.HasPrefix(line, "error") {
		r.err = line
	}
}

// Text returns the last line that begins with "error" or "ERROR", or else the last line.
func (r *Reason) Text() string {
	if r.err != "" {
		return r.err
	}
	return r.last
}
