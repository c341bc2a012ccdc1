package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"
)

// The test binary is also the programs that tests start: what it is to be is in this variable.
const envRole = "SHARDBOOK_TEST_COMPLETION"

func TestMain(m *testing.M) {
	switch os.Getenv(envRole) {
	case "":
		os.Exit(m.Run())
	case "gopls":
		fakeGopls()
	case "proxy":
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		if err := serve(ctx, os.Args[2], connectTime, fakeSettings()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// fakeSettings are those of a gopls that this test binary is, with limits that no test reaches by itself.
func fakeSettings() settings {
	return settings{command: []string{"env", envRole + "=gopls", os.Args[0]}, idle: 5 * time.Minute,
		answer: time.Minute, memory: 400, rss: func(int) int64 { return 0 }}
}

// report is the fake gopls's answer to a request: what it knows.
type report struct {
	PID        int               `json:"pid"`
	Limit      string            `json:"limit"`      // of its memory
	Initialize json.RawMessage   `json:"initialize"` // the parameters
	Methods    []string          `json:"methods"`    // in the order of the messages
	Documents  map[string]string `json:"documents"`  // open ones, by URI
}

// fakeGopls is a gopls whose requests' methods say what it does. It ignores the end of its input, like a busy one.
func fakeGopls() {
	r := bufio.NewReader(os.Stdin)
	var asking json.RawMessage // the client's request during which it has one of its own
	knows := report{PID: os.Getpid(), Limit: os.Getenv("GOMEMLIMIT"), Documents: map[string]string{}}
	for {
		m, err := receive(r)
		if err != nil {
			time.Sleep(time.Hour)
		}
		if m.Method != "" {
			knows.Methods = append(knows.Methods, m.Method)
		}
		var c change
		_ = json.Unmarshal(m.Params, &c)
		uri := c.TextDocument.URI
		switch m.Method {
		case "initialize":
			knows.Initialize = m.Params
			send(os.Stdout, response(m.ID, object{}))
		case didOpen:
			knows.Documents[uri] = c.TextDocument.Text
		case didChange: // as gopls does: with a range, the text is inserted
			var ranged struct {
				ContentChanges []struct{ Range *struct{} }
			}
			_ = json.Unmarshal(m.Params, &ranged)
			if ranged.ContentChanges[0].Range != nil {
				knows.Documents[uri] = c.ContentChanges[0].Text + knows.Documents[uri]
			} else {
				knows.Documents[uri] = c.ContentChanges[0].Text
			}
		case didClose:
			delete(knows.Documents, uri)
		case "test/answer", "textDocument/hover":
			send(os.Stdout, response(m.ID, knows))
		case "test/notify":
			send(os.Stdout, notification("window/logMessage", object{"message": "loaded"}))
			send(os.Stdout, response(m.ID, knows))
		case "test/ask":
			asking = m.ID
			send(os.Stdout, request(json.RawMessage(`"fake"`), "workspace/configuration", object{}))
		case "test/exit":
			os.Exit(3)
		case "test/deaf":
			time.Sleep(time.Hour)
		case "test/ignore", "initialized":
		case "":
			send(os.Stdout, response(asking, string(m.Error)))
		}
	}
}
