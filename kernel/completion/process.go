package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
)

// process is a gopls that runs.
type process struct {
	messages chan message // from it; closed when it has ended
	end      string       // how it has ended

	pid    int
	queue  chan []byte // to it
	cancel context.CancelFunc
}

// queued is the most messages that wait for gopls to read them.
const queued = 1000

// start starts gopls and initializes it with the request.
func start(s settings, initialize message) (*process, error) {
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, s.command[0], s.command[1:]...)
	// With GO_TELEMETRY_CHILD=2 gopls starts no second process for crash reports, which would take 27 MB.
	cmd.Env = append(os.Environ(), fmt.Sprintf("GOMEMLIMIT=%dMiB", s.memory), "GO_TELEMETRY_CHILD=2")
	cmd.Stderr = os.Stderr // which GoNB discards
	// Also ends the go commands that it runs.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	endWithParent(cmd.SysProcAttr)
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	in, inErr := cmd.StdinPipe()
	out, outErr := cmd.StdoutPipe()
	err := errors.Join(inErr, outErr)
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		return nil, err
	}
	p := &process{messages: make(chan message), pid: cmd.Process.Pid, queue: make(chan []byte, queued), cancel: cancel}
	ready := make(chan struct{})
	go p.write(in, initialize, ready)
	go p.read(cmd, out, initialize, ready)
	return p, nil
}

// write sends gopls what is queued, after the handshake.
func (p *process) write(in io.WriteCloser, initialize message, ready <-chan struct{}) {
	defer in.Close()
	err := send(in, initialize.text)
	<-ready
	if err == nil {
		err = send(in, notification("initialized", object{}))
	}
	for text := range p.queue {
		if err == nil {
			err = send(in, text)
		}
	}
}

// read passes on what gopls sends, until it ends, and closes ready when it is initialized or has ended.
func (p *process) read(cmd *exec.Cmd, out io.Reader, initialize message, ready chan<- struct{}) {
	defer close(p.messages)
	isReady := sync.OnceFunc(func() { close(ready) })
	defer isReady()
	r := bufio.NewReader(out)
	for {
		m, err := receive(r)
		if err != nil {
			break
		}
		if m.Method == "" && string(m.ID) == string(initialize.ID) {
			isReady()
			continue
		}
		p.messages <- m
	}
	p.cancel() // what it writes may be no message
	_ = cmd.Wait()
	p.end = cmd.ProcessState.String()
}

// send queues a message. It returns false if gopls does not read what it is sent.
func (p *process) send(text []byte) bool {
	select {
	case p.queue <- text:
		return true
	default:
		return false
	}
}

// stop ends gopls and waits until it has ended. It has nothing to save: its cache is written atomically.
func (p *process) stop() {
	p.cancel()
	for range p.messages {
	}
	close(p.queue)
}
