package kernel

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

// command is a program that set-up runs.
type command struct {
	name   string
	args   []string
	dir    string            // "" is the working folder
	env    []string          // added to the process's own
	onLine func(line string) // told each line that it prints; may be nil
	advice string            // what to do if it fails
}

// run runs the command. Its error is one sentence that ends with the reason the
// program printed.
func (c command) run(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, c.name, c.args...)
	cmd.Dir = c.dir
	cmd.Env = append(os.Environ(), c.env...)
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
	var said reason
	lines := bufio.NewScanner(pipe)
	for lines.Scan() {
		if c.onLine != nil {
			c.onLine(lines.Text())
		}
		said.hear(lines.Text())
	}
	io.Copy(io.Discard, pipe) // after a line that is too long: a program that cannot print would never end
	err = cmd.Wait()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil:
		return nil
	case strings.Contains(said.text(), "No space left on device"):
		err = syscall.ENOSPC // which has advice of its own
	}
	err = fmt.Errorf("%s failed: %s (%w)", filepath.Base(c.name), said.text(), err)
	if c.advice != "" {
		err = fmt.Errorf("%w: %s", err, c.advice)
	}
	return err
}

// reason picks out of a program's output the line that says why it failed.
type reason struct{ last, err string }

func (r *reason) hear(line string) {
	line = strings.TrimSpace(line)
	if line != "" {
		r.last = line
	}
	if strings.HasPrefix(line, "ERROR") || strings.HasPrefix(line, "error") {
		r.err = line
	}
}

func (r *reason) text() string {
	if r.err != "" {
		return r.err
	}
	return r.last
}
