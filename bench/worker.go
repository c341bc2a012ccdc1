package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// patience bounds the time in which a worker starts, or answers one request.
const patience = 5 * time.Minute

// grace is how long a program may take to end.
const grace = 3 * time.Second

// worker is an implementation's processes, as the process that measures sees them.
type worker struct {
	implementation
	programs []*exec.Cmd
	over     sync.WaitGroup // the programs
	ranks    []*connection
	output   string // file with the output of the programs
	versions versions
}

type connection struct {
	net.Conn
	answers *json.Decoder
}

// startWorkers starts the implementations that can be, and says which cannot. The
// workers must be stopped, also after an error.
func startWorkers(ctx context.Context, implementations []implementation, b *benchmark, p place,
	onStart func(name string)) (workers []*worker, err error) {
	for _, im := range implementations {
		w, err := startWorker(ctx, im, b, p)
		var missing errUnsupported
		if errors.As(err, &missing) {
			fmt.Fprintf(os.Stderr, "bench: without %s: %v\n", im.name, missing)
		} else if err != nil {
			return workers, err
		} else {
			workers = append(workers, w)
		}
		onStart(im.name)
	}
	return workers, nil
}

// stopWorkers stops all at the same time: some may take a while.
func stopWorkers(workers []*worker) {
	var stopping sync.WaitGroup
	for _, w := range workers {
		stopping.Go(w.stop)
	}
	stopping.Wait()
}

// startWorker starts an implementation's processes and waits until all of them have connected.
func startWorker(ctx context.Context, im implementation, b *benchmark, p place) (*worker, error) {
	w := &worker{implementation: im}
	if err := w.start(ctx, b, p); err != nil {
		w.stop()
		return nil, fmt.Errorf("starting %s: %w", im.name, err)
	}
	return w, nil
}

func (w *worker) start(ctx context.Context, b *benchmark, p place) error {
	path := filepath.Join(p.dir, w.name+".sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	defer listener.Close()
	w.output = filepath.Join(p.dir, w.name+".log")
	output, err := os.OpenFile(w.output, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer output.Close()
	commands := w.commands
	if commands == nil {
		commands = func(ctx context.Context, _ place) ([]*exec.Cmd, error) { return w.self(ctx, b) }
	}
	programs, err := commands(ctx, p)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return err
	}
	ended := make(chan error, len(programs))
	for _, cmd := range programs {
		if cmd.Env == nil {
			cmd.Env = os.Environ()
		}
		cmd.Env = append(cmd.Env, envSocket+"="+path)
		cmd.Stdout, cmd.Stderr = output, output
		// An interrupt from the keyboard goes to this process only, which then
		// ends the workers in order: mpirun must live to end its ranks.
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		cmd.WaitDelay = grace
		if err := cmd.Start(); err != nil {
			return err
		}
		w.programs = append(w.programs, cmd)
		w.over.Go(func() { ended <- cmd.Wait() })
	}
	accepted := make(chan error, 1)
	go func() { accepted <- w.accept(listener.(*net.UnixListener)) }()
	select {
	case err = <-accepted:
	case end := <-ended:
		listener.Close()
		w.signal(syscall.SIGKILL)
		<-accepted
		err = fmt.Errorf("it ended at once (%v): %s", end, w.lastWords())
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err == nil {
		// If one of several processes dies, the others are not waited for.
		go func() {
			<-ended
			w.hangUp()
		}()
	}
	return err
}

// self is this very program as a worker.
func (im implementation) self(ctx context.Context, b *benchmark) ([]*exec.Cmd, error) {
	program, err := os.Executable()
	cmd := exec.CommandContext(ctx, program, append([]string{b.name, "--worker=" + im.name}, im.args...)...)
	cmd.Env = append(os.Environ(), im.env...)
	return []*exec.Cmd{cmd}, err
}

// accept takes the ranks' connections, in any order.
func (w *worker) accept(listener *net.UnixListener) error {
	listener.SetDeadline(time.Now().Add(patience))
	processes := cmp.Or(w.processes, len(w.programs))
	for range processes {
		conn, err := listener.Accept()
		if err != nil {
			return fmt.Errorf("%d of %d processes connected: %w: %s", len(w.ranks), processes, err, w.lastWords())
		}
		c := &connection{conn, json.NewDecoder(conn)}
		w.ranks = append(w.ranks, c)
		hello, err := c.hear()
		if err != nil {
			return fmt.Errorf("%w: %s", err, w.lastWords())
		}
		w.versions = hello.Versions
	}
	return nil
}

func (c *connection) hear() (a answer, err error) {
	c.SetReadDeadline(time.Now().Add(patience))
	if err := c.answers.Decode(&a); err != nil {
		return a, fmt.Errorf("the process has ended or hangs: %w", err)
	}
	return a, nil
}

// ask sends a request to every rank. It returns the answer of the first, with the time of the slowest.
func (w *worker) ask(ctx context.Context, r request) (all answer, err error) {
	// No answer is waited for when the run is cut off.
	defer context.AfterFunc(ctx, w.hangUp)()
	for _, c := range w.ranks {
		if err := json.NewEncoder(c).Encode(r); err != nil {
			return all, w.failed(ctx, r, err)
		}
	}
	var unsupported errUnsupported
	for i, c := range w.ranks {
		a, err := c.hear()
		switch {
		case err != nil:
			return all, w.failed(ctx, r, err)
		case a.Error != "":
			return all, fmt.Errorf("%s, %s: %s", w.name, r.Do, a.Error)
		case a.Unsupported != "":
			unsupported = errUnsupported(a.Unsupported)
		}
		if i == 0 {
			all = a
		}
		all.MS = max(all.MS, a.MS)
	}
	if unsupported != "" {
		return all, unsupported
	}
	return all, nil
}

func (w *worker) failed(ctx context.Context, r request, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%s, %s: %w: %s", w.name, r.Do, err, w.lastWords())
}

// lastWords are the last lines of the programs' output. It waits a moment for them to end:
// a connection breaks before their last output is written.
func (w *worker) lastWords() string {
	w.await(grace)
	text, _ := os.ReadFile(w.output)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-6):], " | ")
}

// stop ends the programs: by closing their connections, then by signals.
func (w *worker) stop() {
	w.hangUp()
	if !w.await(grace) {
		w.signal(syscall.SIGTERM)
		w.await(grace)
	}
	w.signal(syscall.SIGKILL)
	w.await(grace)
}

// hangUp ends the connections, and with them the wait for any answer.
func (w *worker) hangUp() {
	for _, c := range w.ranks {
		c.Close()
	}
}

// await waits for the programs to end, and reports whether they have.
func (w *worker) await(most time.Duration) bool {
	over := make(chan struct{})
	go func() {
		w.over.Wait()
		close(over)
	}()
	select {
	case <-over:
		return true
	case <-time.After(most):
		return false
	}
}

// signal sends the programs and their children a signal.
func (w *worker) signal(s syscall.Signal) {
	for _, cmd := range w.programs {
		syscall.Kill(-cmd.Process.Pid, s)
	}
}
