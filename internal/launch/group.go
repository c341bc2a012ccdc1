package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ownGroup runs a command in its own process group, and kills the group when the command's context ends.
func ownGroup(cmd *exec.Cmd) *exec.Cmd {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // for processes that left the group and hold the output open
	return cmd
}

// killMarked kills this user's processes on this machine, except this one, that inherited a setting in their
// environment. Ranks have process groups of their own, and outlive mpirun when it is killed. It needs /proc and does
// nothing without. As root it could also kill processes of others, who can put any setting into their environment, so
// it selects by user.
func killMarked(setting string) {
	paths, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range paths {
		environ, err := os.ReadFile(path)
		if err != nil || !ours(filepath.Dir(path)) ||
			!bytes.Contains(append([]byte{0}, environ...), []byte("\x00"+setting+"\x00")) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil && pid != os.Getpid() {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// ours reports whether the process with this folder in /proc was started by this process's user.
func ours(process string) bool {
	status, _ := os.ReadFile(filepath.Join(process, "status"))
	_, ids, _ := bytes.Cut(status, []byte("\nUid:"))
	var uid int // the real one, which comes first
	_, err := fmt.Fscan(bytes.NewReader(ids), &uid)
	return err == nil && uid == os.Getuid()
}

// output runs a short program and returns its standard output; an error has the last line of its standard error.
func output(ctx context.Context, command ...string) (string, error) {
	text, err := ownGroup(exec.CommandContext(ctx, command[0], command[1:]...)).Output()
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		lines := strings.Split(strings.TrimSpace(string(ended.Stderr)), "\n")
		if last := lines[len(lines)-1]; last != "" {
			err = fmt.Errorf("%w: %.300s", err, last)
		}
	}
	return string(text), err
}
