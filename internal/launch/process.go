package launch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"sync"
	"syscall"
)

// Process is a running job.
type Process interface {
	// Done is closed when the job has ended and none of its processes is left on this machine.
	Done() <-chan struct{}
	// Status is the job's exit status after Done; 128 plus the signal's number if it was killed.
	Status() int
	// Trouble is closed at the first sign that the job will fail. It may never be closed.
	Trouble() <-chan struct{}
	// Interrupt asks the job to save a checkpoint and end.
	Interrupt()
	// Kill ends the job immediately.
	Kill()
}

// envMark is an environment variable that all processes of a job inherit.
const envMark = "SHARDBOOK_LAUNCH"

// mpirun implements Process.
type mpirun struct {
	cmd     *exec.Cmd
	mark    string
	done    chan struct{}
	trouble chan struct{}
	status  int
}

// Start runs mpirun, or another program, in its own process group, and copies its output to stdout and stderr. A line
// of stderr that matches the pattern closes Trouble.
func Start(program string, args []string, stdout, stderr io.Writer, trouble *regexp.Regexp) (Process, error) {
	p := &mpirun{cmd: ownGroup(exec.Command(program, args...)), done: make(chan struct{}), trouble: make(chan struct{})}
	p.cmd.Cancel = nil // it has no context
	p.mark = fmt.Sprintf("%s=%d.%p", envMark, os.Getpid(), p)
	p.cmd.Env = append(os.Environ(), p.mark)
	p.cmd.Stdout = stdout
	p.cmd.Stderr = &lineWatch{to: stderr, pattern: trouble, found: sync.OnceFunc(func() { close(p.trouble) })}
	if err := p.cmd.Start(); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			err = fmt.Errorf("%w: apt-get install openmpi-bin", err)
		}
		return nil, err
	}
	go p.wait()
	return p, nil
}

func (p *mpirun) wait() {
	p.cmd.Wait() // its error is in the state
	syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	killMarked(p.mark)
	p.status = p.cmd.ProcessState.ExitCode()
	if how, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && how.Signaled() {
		p.status = 128 + int(how.Signal())
	}
	close(p.done)
}

func (p *mpirun) Done() <-chan struct{} { return p.done }

func (p *mpirun) Status() int { return p.status }

func (p *mpirun) Trouble() <-chan struct{} { return p.trouble }

// Interrupt sends mpirun SIGUSR1, which it forwards to all ranks. SIGTERM would kill the ranks one second later, before
// they have saved.
func (p *mpirun) Interrupt() { p.cmd.Process.Signal(syscall.SIGUSR1) }

func (p *mpirun) Kill() {
	syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	killMarked(p.mark)
}

// maxLine is the number of bytes of a line that are compared with a pattern.
const maxLine = 1000

// lineWatch copies its input and searches its lines for a pattern.
type lineWatch struct {
	to      io.Writer
	pattern *regexp.Regexp
	found   func()
	line    []byte // the incomplete last line
}

func (w *lineWatch) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		line, after, ended := bytes.Cut(rest, []byte("\n"))
		w.line = append(w.line, line[:min(len(line), maxLine-len(w.line))]...)
		if ended {
			if w.pattern.Match(w.line) {
				w.found()
			}
			w.line = w.line[:0]
		}
		rest = after
	}
	return w.to.Write(p)
}
