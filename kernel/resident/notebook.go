package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/shardbook/shardbook/internal/echarts"
	"github.com/shardbook/shardbook/lib/resident"
)

// serveNotebook serves the notebook's process until the kernel that started it ends.
func serveNotebook() error {
	kernel := os.Getppid()
	socket, err := inherited()
	if err != nil {
		return err
	}
	folder := filepath.Dir(socket.Addr().String())
	defer os.RemoveAll(folder)
	n := &notebook{folder: folder, processes: map[string]*process{}, values: map[string]*kept{}}
	s := &resident.Server{}
	resident.Handle(s, n.start)
	resident.Handle(s, n.why)
	resident.Handle(s, n.put)
	resident.Handle(s, n.get)
	resident.Handle(s, n.names)
	drawn := &charts{pictures: map[echarts.Request]echarts.Picture{}}
	resident.Handle(s, drawn.draw)
	go func() {
		awaitEnd(kernel)
		socket.Close()
	}()
	return s.Serve(socket)
}

// notebook is what lives as long as the notebook's kernel.
type notebook struct {
	folder string // of sockets

	mu        sync.Mutex
	processes map[string]*process // with devices, by the environment that they depend on
	all       []*process          // also those that have ended
	notes     []string            // for the next cell
	values    map[string]*kept    // by name
}

// process is a process with devices.
type process struct {
	socket string
	ended  chan struct{} // closed when it has ended
	why    string
}

// start starts a process with devices, unless there is one with the same environment.
func (n *notebook) start(_ *resident.Session, s resident.Start) (resident.Started, error) {
	slices.Sort(s.Env)
	key := strings.Join(s.Env, "\n")
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.processes[key]
	if p == nil {
		var err error
		if p, err = n.run(key, s.Env); err != nil {
			return resident.Started{}, err
		}
	}
	notes := n.notes
	n.notes = nil
	return resident.Started{Socket: p.socket, Notes: notes}, nil
}

// run starts a process with devices.
func (n *notebook) run(key string, env []string) (*process, error) {
	p := &process{socket: filepath.Join(n.folder, fmt.Sprint("devices", len(n.all))), ended: make(chan struct{})}
	cmd, err := start(p.socket, "devices")
	if err != nil {
		return nil, err
	}
	cmd.Env = append(resident.Unrelated(os.Environ()), env...)
	var said tail
	cmd.Stdout, cmd.Stderr = &said, &said
	if _, err := cmd.StdinPipe(); err != nil { // stays open as long as this process
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting a process with devices: %w", err)
	}
	for _, file := range cmd.ExtraFiles {
		file.Close()
	}
	n.processes[key], n.all = p, append(n.all, p)
	go func() {
		err := cmd.Wait()
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.processes, key)
		p.why = ending(cmd, err, said.lastLine())
		note := "The devices were opened anew, because " + p.why + "."
		if lost := n.lose(p.socket, p.why); len(lost) > 0 {
			note += fmt.Sprintf(" Lost: %q.", lost)
		}
		n.notes = append(n.notes, note)
		os.Remove(p.socket)
		close(p.ended)
	}()
	return p, nil
}

// ending says in words how a process ended.
func ending(cmd *exec.Cmd, err error, last string) string {
	text := "their process ended"
	if err != nil {
		text += fmt.Sprintf(" (%v)", err)
	}
	if last != "" {
		text += ": " + strings.TrimSuffix(last, ".")
	}
	return text
}

// why returns why a process with devices has ended. Its connections end a moment before it does.
func (n *notebook) why(_ *resident.Session, w resident.Why) (resident.Because, error) {
	n.mu.Lock()
	i := slices.IndexFunc(n.all, func(p *process) bool { return p.socket == w.Socket })
	if i < 0 {
		n.mu.Unlock()
		return resident.Because{}, nil
	}
	p := n.all[i]
	n.mu.Unlock()
	select {
	case <-p.ended:
	case <-time.After(10 * time.Second):
		return resident.Because{}, nil
	}
	return resident.Because{Text: p.why}, nil
}

// tail keeps the end of what a process has printed.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(text []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, text...)
	if extra := len(t.text) - 1<<20; extra > 0 {
		t.text = slices.Clone(t.text[extra:])
	}
	return len(text), nil
}

// lastLine returns the line that says most about the end: that of a signal, a panic or a failed check, else the last.
func (t *tail) lastLine() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := bytes.Split(bytes.TrimSpace(t.text), []byte("\n"))
	for _, line := range lines {
		for _, start := range []string{"SIG", "panic: ", "fatal error: ", "F0"} {
			if bytes.HasPrefix(line, []byte(start)) {
				return string(line)
			}
		}
	}
	return string(lines[len(lines)-1])
}
