package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/systest"
	"github.com/shardbook/shardbook/lib/checkpoint"
)

// process is a command line under way, and what it has said so far on standard error, or where prepare set it, on both
// outputs.
type process struct {
	*exec.Cmd
	t     *testing.T
	ctx   context.Context
	ended chan struct{} // is closed when it has ended

	mu   sync.Mutex
	said strings.Builder
}

// begin starts a command line, or with the test's own program the command, in a process group of its own. It ends after
// five minutes at most, and with the test.
func begin(t *testing.T, prepare func(*exec.Cmd), line ...string) *process {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	p := &process{Cmd: exec.CommandContext(ctx, line[0], line[1:]...), t: t, ctx: ctx, ended: make(chan struct{})}
	p.Env = append(append(os.Environ(), asRootToo...), envMain+"=1")
	p.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.Cancel = func() error { return syscall.Kill(-p.Process.Pid, syscall.SIGKILL) }
	p.WaitDelay = 10 * time.Second
	p.Stderr = p
	if prepare != nil {
		prepare(p.Cmd)
	}
	must.Do(t, p.Start())
	go func() {
		defer close(p.ended)
		p.Wait() // its error is in the state
	}()
	return p
}

// both has standard output recorded like standard error.
func both(cmd *exec.Cmd) { cmd.Stdout = cmd.Stderr }

func (p *process) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.said.Write(text)
}

func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.said.String()
}

// lines are the whole lines said so far in which a pattern is found.
func (p *process) lines(pattern string) (found []string) {
	look := regexp.MustCompile(pattern)
	for line := range strings.Lines(p.output()) {
		if strings.HasSuffix(line, "\n") && look.MatchString(line) {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found
}

// until waits for a condition. It fails the test if the process ends without.
func (p *process) until(what string, holds func() bool) {
	p.t.Helper()
	for !holds() {
		select {
		case <-p.ended:
			if !holds() {
				p.t.Fatalf("it ended before %s: %v\n%s", what, p.ProcessState, p.output())
			}
		case <-time.After(time.Millisecond):
		}
	}
}

// status waits for the end, and returns the exit status.
func (p *process) status() int {
	p.t.Helper()
	<-p.ended
	if p.ctx.Err() != nil {
		p.t.Fatalf("%q did not end in time:\n%s", p.Args, p.output())
	}
	return p.ProcessState.ExitCode()
}

// ends checks that the process ends with a signal's status, with one sentence, and with no trace of a stack.
func (p *process) ends(by syscall.Signal, want string) {
	p.t.Helper()
	status, said := p.status(), strings.TrimSpace(p.output())
	if status != 128+int(by) || strings.Contains(said, "\n") || !strings.Contains(said, want) {
		p.t.Errorf("status %d, want %d and one sentence with %q: %s", status, 128+int(by), want, said)
	}
}

// interrupted starts a long training, interrupts it once it has saved a step, and returns the step at which it stopped.
// It calls meanwhile, if there is one, before the interruption.
func interrupted(t *testing.T, folder string, saved int, meanwhile func(*process), args ...string) int {
	t.Helper()
	p := begin(t, nil, append(append([]string{os.Args[0]}, args...), "--checkpoint", folder, "--steps", "1000000",
		"--save-every", strconv.Itoa(saved), "--grace", "1h")...)
	p.until("the first checkpoint", func() bool { return exists(filepath.Join(folder, stepName(saved))) })
	if meanwhile != nil {
		meanwhile(p)
	}
	p.Process.Signal(os.Interrupt)
	if status := p.status(); status != 1 || !strings.Contains(p.output(), "continue with --resume") {
		t.Fatalf("interrupted: status %d, %s", status, p.output())
	}
	return newestStep(t, folder)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// stepName is the name of a step's checkpoint.
func stepName(step int) string { return fmt.Sprintf("step-%08d", step) }

// newestStep is the step of the newest checkpoint in a folder.
func newestStep(t *testing.T, folder string) int {
	t.Helper()
	path := must.Get(checkpoint.Latest(folder))(t)
	step := must.Get(strconv.Atoi(strings.TrimPrefix(filepath.Base(path), "step-")))(t)
	return step
}

// tensorsOf returns the path and content of the file of tensors in a step's checkpoint.
func tensorsOf(t *testing.T, folder string, step int) (path string, data []byte) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, stepName(step), "*.safetensors"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	if data, err = os.ReadFile(files[0]); err != nil {
		t.Fatal(err)
	}
	return files[0], data
}

// logged is the number of steps in a log.
func logged(path string) int {
	text, _ := os.ReadFile(path)
	return strings.Count(string(text), "\n")
}

// checkLog checks that a log has each step once, in order, with its loss.
func checkLog(t *testing.T, path string, losses []float64, within float64) {
	t.Helper()
	file := must.Get(os.Open(path))(t)
	defer file.Close()
	var got []float64
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var r stepRecord
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil || r.Step != len(got)+1 {
			t.Fatalf("line %d of the log is %q", len(got)+1, lines.Text())
		}
		got = append(got, r.Loss)
	}
	if !near(got, losses, within) {
		t.Errorf("losses %v in the log, want %v", got, losses)
	}
}

// mpiCommand is the command, built once with the tag mpi. A machine without Open MPI and without the means to get it
// skips the test; CI and root never do.
func mpiCommand(t *testing.T) (path string) {
	t.Helper()
	systest.OpenMPI(t)
	path = must.Get(builtCommand())(t)
	return path
}

var builtCommand = sync.OnceValues(func() (string, error) {
	folder, err := os.MkdirTemp("", "shardbook-mpi-")
	if err != nil {
		return "", err
	}
	builtIn = folder
	path := filepath.Join(folder, "shardbook")
	output, err := exec.Command("go", "build", "-tags", "mpi", "-o", path, ".").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, output)
	}
	return path, nil
})

// builtIn is the folder of the command, if it was built, which TestMain removes.
var builtIn string

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
		must.Do(t, err)
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
	path := must.Get(checkpoint.Latest(folder))(t)
	if c, err := checkpoint.Open(path); err != nil || c.Step != 1 {
		t.Errorf("the newest checkpoint is %s, error %v", path, err)
	}
}

// Who waits for input ends at once.
func TestSignalWhileReading(t *testing.T) {
	in, out, err := os.Pipe()
	must.Do(t, err)
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

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	must.Do(t, os.WriteFile(path, []byte(text), 0o755))
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text := must.Get(os.ReadFile(path))(t)
	return string(text)
}
