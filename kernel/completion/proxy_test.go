package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/systest"
)

const (
	folder  = "file:///tmp/gonb_1"
	mainURI = folder + "/main.go"
)

// workspace are the parameters of initialize.
func workspace(folder string) object {
	return object{"processId": 0, "workspaceFolders": []object{{"uri": folder, "name": "gonb_1"}}}
}

// client is GoNB, with a proxy of its own and a clock.
type client struct {
	t        *testing.T
	conn     net.Conn
	r        *bufio.Reader
	requests int
	ticks    chan time.Time
	now      time.Time
	notes    []string // notifications that came
}

// connect starts a proxy and initializes it. At the end of the test nothing of it is left.
func connect(t *testing.T, s settings) *client {
	t.Helper()
	left := systest.NoLeaks(t)
	listener := must.Get(net.Listen("unix", filepath.Join(t.TempDir(), "socket")))(t)
	c := dial(t, listener.Addr().String())
	far := must.Get(listener.Accept())(t)
	listener.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer far.Close()
		newProxy(s, far).run(c.ticks)
	}()
	t.Cleanup(func() {
		c.conn.Close()
		<-done
		left()
	})
	c.after(0)
	c.initialize()
	c.notify("initialized", object{})
	return c
}

// dial connects to a proxy once that listens.
func dial(t *testing.T, socket string) *client {
	t.Helper()
	for begun := time.Now(); ; time.Sleep(time.Millisecond) {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			return &client{t: t, conn: conn, r: bufio.NewReader(conn), ticks: make(chan time.Time), now: time.Now()}
		}
		if time.Since(begun) > 10*time.Second {
			t.Fatal(err)
		}
	}
}

// initialize returns when the proxy has handled all messages before it.
func (c *client) initialize() {
	c.t.Helper()
	if answer := c.ask("initialize", workspace(folder)); !strings.Contains(answer, "completionProvider") {
		c.t.Fatalf("initialize is answered by %s", answer)
	}
}

func (c *client) notify(method string, params any) {
	c.t.Helper()
	must.Do(c.t, send(c.conn, notification(method, params)))
}

func (c *client) open(uri, text string) {
	c.t.Helper()
	c.notify(didOpen, object{"textDocument": object{"uri": uri, "languageId": "go", "version": 1, "text": text}})
}

// change sends a full text as GoNB does, with an empty range.
func (c *client) change(uri, text string) {
	c.t.Helper()
	empty := object{"start": object{"line": 0, "character": 0}, "end": object{"line": 0, "character": 0}}
	c.notify(didChange, object{"textDocument": object{"uri": uri, "version": 2},
		"contentChanges": []object{{"range": empty, "text": text}}})
}

// begin sends a request and returns its ID.
func (c *client) begin(method string, params any) (id string) {
	c.t.Helper()
	c.requests++
	id = strconv.Itoa(c.requests)
	must.Do(c.t, send(c.conn, request(json.RawMessage(id), method, params)))
	return id
}

// end waits for the answer to a request.
func (c *client) end(id string) (answer string) {
	c.t.Helper()
	for {
		m := must.Get(receive(c.r))(c.t)
		if m.Method != "" {
			c.notes = append(c.notes, m.Method)
			continue
		}
		if string(m.ID) != id {
			c.t.Fatalf("an answer to request %s, want one to %s", m.ID, id)
		}
		return string(m.text)
	}
}

func (c *client) ask(method string, params any) (answer string) {
	c.t.Helper()
	return c.end(c.begin(method, params))
}

// knows asks gopls what it knows.
func (c *client) knows() report {
	c.t.Helper()
	var answer struct {
		Result report
		Error  *struct{ Message string }
	}
	must.Do(c.t, json.Unmarshal([]byte(c.ask("test/answer", object{})), &answer))
	if answer.Error != nil {
		c.t.Fatalf("gopls does not answer: %s", answer.Error.Message)
	}
	return answer.Result
}

// fails checks that an answer is an error that says why.
func (c *client) fails(answer, why string) {
	c.t.Helper()
	if !strings.Contains(answer, `"error"`) || !strings.Contains(answer, why) {
		c.t.Errorf("the answer is %s, want an error with %q", answer, why)
	}
}

// after moves the clock.
func (c *client) after(d time.Duration) {
	c.now = c.now.Add(d)
	c.ticks <- c.now
}

// gone waits until a process has ended.
func gone(t *testing.T, pid int) {
	t.Helper()
	for begun := time.Now(); ; time.Sleep(time.Millisecond) {
		// Whoever adopts orphans may leave them as zombies.
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		if time.Since(begun) > 10*time.Second {
			t.Fatalf("process %d has not ended: %s", pid, stat)
		}
	}
}

func TestStartsAtTheFirstRequest(t *testing.T) {
	s := fakeSettings()
	s.command = []string{"/nowhere/gopls"} // to start it would be an error
	c := connect(t, s)
	c.open(mainURI, "package main")
	c.change(mainURI, "package main // 2")
	c.notify("$/cancelRequest", object{"id": 1})
	c.initialize() // answered after all that
	c.after(time.Hour)
	c.fails(c.ask("test/answer", object{}), "/nowhere/gopls")
	c.fails(c.ask("test/answer", object{}), "/nowhere/gopls")
}

func TestReplays(t *testing.T) {
	c := connect(t, fakeSettings())
	c.open(mainURI, "package main // 1")
	c.change(mainURI, "package main // 2")
	c.open(folder+"/other.go", "package main")
	c.notify(didClose, object{"textDocument": object{"uri": folder + "/other.go"}})
	c.open("file:///src/lib/xla/xla.go", "package xla")
	c.open(folder+"/go.mod", "module gonb_1")
	got := c.knows()
	if want := []string{"initialize", "initialized", didOpen, "test/answer"}; !slices.Equal(got.Methods, want) {
		t.Errorf("gopls gets %q, want %q", got.Methods, want)
	}
	if len(got.Documents) != 1 || got.Documents[mainURI] != "package main // 2" {
		t.Errorf("gopls has the documents %q", got.Documents)
	}
	if !strings.Contains(string(got.Initialize), folder) || !strings.Contains(string(got.Initialize), `"6m0s"`) {
		t.Errorf("gopls is initialized with %s", got.Initialize)
	}
	if got.Limit != "400MiB" {
		t.Errorf("gopls has the memory limit %q", got.Limit)
	}
}

func TestFollowsChanges(t *testing.T) {
	c := connect(t, fakeSettings())
	c.open(mainURI, "1")
	pid := c.knows().PID
	c.change(mainURI, "2")
	c.open(folder+"/other.go", "package main")
	c.open("file:///src/lib/xla/xla.go", "package xla")
	c.notify(didClose, object{"textDocument": object{"uri": "file:///src/lib/xla/xla.go"}})
	got := c.knows()
	const watched = "workspace/didChangeWatchedFiles"
	want := []string{"initialize", "initialized", didOpen, "test/answer", didChange, didOpen, watched, watched,
		"test/answer"}
	if !slices.Equal(got.Methods, want) || got.PID != pid {
		t.Errorf("gopls %d gets %q, want %d and %q", got.PID, got.Methods, pid, want)
	}
	if len(got.Documents) != 2 || got.Documents[mainURI] != "2" {
		t.Errorf("gopls has the documents %q", got.Documents)
	}
	c.notify(didClose, object{"textDocument": object{"uri": mainURI}})
	if got := c.knows().Documents; len(got) != 1 {
		t.Errorf("with a document closed gopls has %q", got)
	}
}

func TestEndsWhenIdle(t *testing.T) {
	c := connect(t, fakeSettings())
	c.open(mainURI, "1")
	first := c.knows().PID
	c.after(4 * time.Minute)
	if again := c.knows().PID; again != first {
		t.Errorf("gopls was started again after 4 minutes")
	}
	c.after(4 * time.Minute) // since the last request
	c.change(mainURI, "2")   // is no request
	c.after(time.Minute)
	gone(t, first)
	if got := c.knows(); got.PID == first || got.Documents[mainURI] != "2" {
		t.Errorf("after %d gopls is %d, with %q", first, got.PID, got.Documents)
	}
}

func TestLimitsMemory(t *testing.T) {
	var used atomic.Int64
	s := fakeSettings()
	s.rss = func(int) int64 { return used.Load() }
	c := connect(t, s)
	first := c.knows().PID
	used.Store(800 << 20)
	c.after(time.Second)
	if c.knows().PID != first {
		t.Error("gopls was ended within its limit")
	}
	used.Store(801 << 20)
	id := c.begin("test/ignore", object{})
	c.initialize()
	c.after(time.Second)
	c.fails(c.end(id), "801 MiB")
	gone(t, first)
	used.Store(0)
	if c.knows().PID == first {
		t.Error("gopls lives on")
	}
}

func TestAnswersInTime(t *testing.T) {
	c := connect(t, fakeSettings())
	first := c.knows().PID
	id := c.begin("test/ignore", object{})
	c.initialize()
	c.after(59 * time.Second)
	c.initialize() // is answered first
	c.after(time.Second)
	c.fails(c.end(id), "within 1m0s")
	if c.knows().PID != first {
		t.Error("gopls was started again because of a slow answer")
	}
}

func TestGoplsFails(t *testing.T) {
	c := connect(t, fakeSettings())
	first := c.knows().PID
	c.fails(c.ask("test/exit", object{}), "exit status 3")
	second := c.knows().PID
	if second == first {
		t.Error("it has not ended")
	}
	id := c.begin("test/deaf", object{})
	for i := range 2 * queued { // a pipe holds 64 KiB
		c.change(mainURI, strconv.Itoa(i))
	}
	c.fails(c.end(id), "did not read")
	gone(t, second)
	if got := c.knows().Documents[mainURI]; got != strconv.Itoa(2*queued-1) {
		t.Errorf("the next gopls has the text %q", got)
	}
}

func TestPassesOn(t *testing.T) {
	c := connect(t, fakeSettings())
	c.ask("test/notify", object{})
	if !slices.Equal(c.notes, []string{"window/logMessage"}) {
		t.Errorf("the client gets the notifications %q", c.notes)
	}
	if answer := c.ask("test/ask", object{}); !strings.Contains(answer, "no method workspace/configuration") {
		t.Errorf("gopls's own request is answered by %s", answer)
	}
}

func TestShutdown(t *testing.T) {
	c := connect(t, fakeSettings())
	pid := c.knows().PID
	if answer := c.ask("shutdown", object{}); !strings.Contains(answer, `"result":null`) {
		t.Errorf("shutdown is answered by %s", answer)
	}
	gone(t, pid)
}

func TestWrongSettings(t *testing.T) {
	for name, value := range map[string]string{envIdle: "5", envMemory: "1GB"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, value)
			c := connect(t, environment(os.Args[0]))
			c.fails(c.ask("test/answer", object{}), name)
		})
	}
	t.Setenv(envIdle, "90s")
	t.Setenv(envMemory, "300")
	if s := environment("gopls"); s.err != nil || s.idle != 90*time.Second || s.memory != 300 {
		t.Errorf("the settings are %+v", s)
	}
}
