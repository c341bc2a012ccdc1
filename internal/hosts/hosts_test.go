package hosts

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/must"
)

// says runs a command and returns what it prints, and its status.
func says(t *testing.T, cmd *exec.Cmd) (output string, status int) {
	t.Helper()
	text, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text)), cmd.ProcessState.ExitCode()
}

// Hosts have names, an environment and a network of their own, and commands keep their words.
func TestCommand(t *testing.T) {
	h := New(t, 3)
	t.Setenv("WORD", "as it is")
	for i, name := range h.Names() {
		const script = `echo $(hostname), "$1", $WORD`
		if got, status := says(t, h.Command(i, "sh", "-c", script, "sh", "a  'b'")); got != name+", a  'b', as it is" ||
			status != 0 {
			t.Errorf("on host %d: status %d, %q", i, status, got)
		}
	}
	if got, status := says(t, h.Command(1, "sh", "-c", "exit 7")); got != "" || status != 7 {
		t.Errorf("status %d, %q, want 7", status, got)
	}
	if got, err := exec.Command("hostname").Output(); err != nil || strings.HasPrefix(string(got), family) {
		t.Errorf("the machine's name is %q, error %v", got, err)
	}
	// There is no way out.
	if got, status := says(t, h.Command(0, "ip", "route", "get", "192.0.2.1")); status == 0 {
		t.Errorf("host 0 has a way out: %s", got)
	}
}

// The agent goes by the network, and hands nothing over but the command line, to a shell as ssh does.
func TestAgentAndCut(t *testing.T) {
	h := New(t, 3)
	t.Setenv("WORD", "not for others")
	ask := func(from, to int, reaches bool) {
		t.Helper()
		got, status := says(t, h.Command(from, h.Agent(), h.Names()[to], "echo", "$(hostname)", "'a  b'", "$HOME",
			`"$WORD";`, "exit 3"))
		want, wantStatus := fmt.Sprintf("%s a  b %s", h.Names()[to], os.Getenv("HOME")), 3
		if !reaches {
			want, wantStatus = "cannot connect to host "+h.Names()[to], 255
		}
		if status != wantStatus || got != want && (reaches || !strings.Contains(got, want)) {
			t.Errorf("from %d to %d: status %d, %q, want %d, %q", from, to, status, got, wantStatus, want)
		}
	}
	ask(0, 2, true)
	ask(0, 0, true)
	h.Cut(2)
	ask(0, 2, false)
	ask(0, 1, true)
	ask(2, 2, true)
	h.Mend(2)
	ask(0, 2, true)
	if got, status := says(t, exec.Command(h.Agent(), h.Names()[0], "true")); status != 255 {
		t.Errorf("from the machine to a host: status %d, %q, want 255", status, got)
	}
}

// left is what there is of namespaces whose names begin so.
func left(prefix string) (found []string) {
	for _, folder := range []string{namespaces, etcs} {
		paths, _ := filepath.Glob(filepath.Join(folder, prefix+"-*"))
		found = append(found, paths...)
	}
	return found
}

// Hosts go with their test, and those of a test that was killed with the next; those of another that still runs stay.
func TestRemoved(t *testing.T) {
	New(t, 1) // skips where there are none
	var prefix string
	var process *exec.Cmd
	t.Run("a test", func(t *testing.T) {
		h := New(t, 2)
		prefix = h.prefix
		if got := left(prefix); len(got) != 3+2 {
			t.Errorf("namespaces %q, want those of two hosts and a switch", got)
		}
		process = h.Command(1, "sleep", "1000")
		must.Do(t, process.Start())
		for len(pids(h.Names()[1])) == 0 {
			time.Sleep(time.Millisecond)
		}
		stale := fmt.Sprintf("%s%d", family, 1<<30+os.Getpid()) // which no process has
		must.Do(t, ip("netns add "+stale+"-1-h0"))
		must.Do(t, os.MkdirAll(filepath.Join(etcs, stale+"-2-h0"), 0o755))
		other := New(t, 1)
		if got := left(stale); len(got) != 0 {
			t.Errorf("%q are left of a dead process", got)
		}
		if len(left(prefix)) != 3+2 || len(left(other.prefix)) != 2+1 {
			t.Errorf("%q and %q, want both", left(prefix), left(other.prefix))
		}
	})
	if got := left(prefix); len(got) != 0 {
		t.Errorf("%q are left behind the test", got)
	}
	if err := process.Wait(); err == nil || process.ProcessState.Success() {
		t.Errorf("a process on a host ended with %v, want it killed", err)
	}
}

// Wait waits for processes on any host.
func TestWait(t *testing.T) {
	h := New(t, 2)
	h.Wait()
	process := h.Command(1, "sleep", "0.5")
	must.Do(t, process.Start())
	for len(pids(h.Names()[1])) == 0 {
		time.Sleep(time.Millisecond)
	}
	h.Wait()
	if left := pids(h.Names()[1]); len(left) > 0 {
		t.Errorf("Wait did not wait for the processes %q", left)
	}
	process.Wait()
}
