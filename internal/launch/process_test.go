package launch

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/systest"
)

// soon waits for something, and fails the test if it does not come.
func soon(t *testing.T, what string, is func() bool) {
	t.Helper()
	for begun := time.Now(); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Since(begun) > 30*time.Second {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

// closed waits for a channel to be closed.
func closed(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(30 * time.Second):
		t.Fatalf("not within 30 s: %s", what)
	}
}

var trouble = regexp.MustCompile("^rank 1 lost")

func TestProcess(t *testing.T) {
	defer systest.NoLeaks(t)()
	var out, noise bytes.Buffer
	p := must.Get(Start("/bin/sh", []string{"-c", "trap 'echo saved; exit 7' USR1; echo ready; echo rank 1 lost >&2; " +
		"while :; do sleep 0.01; done"},
		&out, &noise, trouble))(t)
	closed(t, "trouble", p.Trouble())
	select {
	case <-p.Done():
		t.Fatalf("it has ended with %d", p.Status())
	default:
	}
	p.Interrupt()
	closed(t, "the end", p.Done())
	if p.Status() != 7 || out.String() != "ready\nsaved\n" || noise.String() != "rank 1 lost\n" {
		t.Errorf("status %d, output %q and %q", p.Status(), out.String(), noise.String())
	}
	if _, err := Start("no-such-mpirun", nil, &out, &noise, trouble); err == nil || !strings.Contains(err.Error(),
		"no-such-mpirun") {
		t.Errorf("%v, want an error that names the program", err)
	}
}

// What a killed program leaves in sessions of their own, as mpirun leaves its ranks, ends too, stopped or not.
func TestKill(t *testing.T) {
	if _, err := os.Stat("/proc/self/environ"); err != nil {
		systest.Skip(t, systest.System, "processes are found in /proc, which is not there")
	}
	defer systest.NoLeaks(t)()
	file := filepath.Join(t.TempDir(), "pid")
	var out, noise bytes.Buffer
	p := must.Get(Start("/bin/sh", []string{"-c", `setsid sh -c 'echo $$ >"$0.new"; mv "$0.new" "$0"; kill -STOP $$' ` +
		file +
		` & wait; sleep 1000`}, &out, &noise, trouble))(t)
	soon(t, "a rank that runs", func() bool { _, err := os.Stat(file); return err == nil })
	text := must.Get(os.ReadFile(file))(t)
	rank := must.Get(strconv.Atoi(strings.TrimSpace(string(text))))(t)
	p.Kill()
	closed(t, "the end", p.Done())
	if want := 128 + int(syscall.SIGKILL); p.Status() != want {
		t.Errorf("status %d, want %d", p.Status(), want)
	}
	soon(t, "the end of the rank", func() bool {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(rank) + "/stat")
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}

// Root kills what has the mark and is root's, and nobody else's process, whatever its environment says.
func TestKillMarkedOfOthers(t *testing.T) {
	if os.Getuid() != 0 {
		systest.Skip(t, systest.NotRoot, "only root can start a process of another user")
	}
	if _, err := os.Stat("/proc/self/environ"); err != nil {
		systest.Skip(t, systest.System, "processes are found in /proc, which is not there")
	}
	defer systest.NoLeaks(t)()
	const mark = envMark + "=a test of other users"
	start := func(uid uint32, setting string) *exec.Cmd {
		cmd := exec.Command("/bin/sleep", "1000")
		cmd.Env = []string{setting}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		// which returns when the process is another program, with its own environment
		must.Do(t, cmd.Start())
		return cmd
	}
	const nobody = 65534
	other, unmarked, ours := start(nobody, mark), start(0, mark+" and more"), start(0, mark)
	killMarked(mark)
	for what, c := range map[string]struct {
		cmd  *exec.Cmd
		want syscall.Signal
	}{
		"another user's":          {other, syscall.SIGTERM},
		"root's without the mark": {unmarked, syscall.SIGTERM},
		"root's":                  {ours, syscall.SIGKILL},
	} {
		c.cmd.Process.Signal(syscall.SIGTERM) // ends those that have not been sent SIGKILL before
		c.cmd.Wait()
		if got := c.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal(); got != c.want {
			t.Errorf("a process that is %s ended by %v, want %v", what, got, c.want)
		}
	}
}

func TestLineWatch(t *testing.T) {
	long := strings.Repeat("x", 3*maxLine)
	for _, test := range []struct {
		writes []string
		found  int
	}{
		{[]string{"rank 1 lost\n"}, 1},
		{[]string{"a\nra", "nk 1", " lost it\nb"}, 1},
		{[]string{"rank 1 lost"}, 0}, // the line has not ended
		{[]string{"so rank 1 lost\n", long, long, "rank 1 lost\n"}, 0},
		{[]string{long, "\nrank 1 lost", long, "\n"}, 1},
	} {
		var out bytes.Buffer
		found := 0
		w := &lineWatch{to: &out, pattern: trouble, found: func() { found++ }}
		for _, text := range test.writes {
			if n, err := w.Write([]byte(text)); n != len(text) || err != nil {
				t.Errorf("%d, %v", n, err)
			}
		}
		if found != test.found || out.String() != strings.Join(test.writes, "") || len(w.line) > maxLine {
			t.Errorf("%.60q: found %d times, want %d; %d bytes kept", test.writes, found, test.found, len(w.line))
		}
	}
}
