package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
)

// A worker process connects to the Unix socket that this environment variable names and then answers requests, each a
// line of JSON, until the connection ends. Where an implementation has several processes each of them connects and gets
// every request. Between requests a worker blocks in a read: it must not take a core from the one that is measured.
// peers/worker.py is the same in Python.
const envSocket = "SHARDBOOK_BENCH_SOCKET"

type request struct {
	Do    string          `json:"do"`              // "prepare", "sample" or "finish"
	Case  json.RawMessage `json:"case,omitempty"`  // of prepare
	Calls int             `json:"calls,omitempty"` // of sample
}

// answer is a worker's answer, and also its first message.
type answer struct {
	Versions    versions `json:"versions,omitempty"` // of the first message
	MS          float64  `json:"ms,omitempty"`       // of sample
	facts                // of prepare
	Unsupported string   `json:"unsupported,omitempty"`
	Error       string   `json:"error,omitempty"`
}

// errUnsupported says that an implementation cannot do a case, and why.
type errUnsupported string

func (e errUnsupported) Error() string { return string(e) }

// serveWorker is a worker process.
func serveWorker(ctx context.Context, b *benchmark, name string) error {
	all := b.implementations()
	i := slices.IndexFunc(all, func(im implementation) bool { return im.name == name && im.serve != nil })
	if i < 0 {
		return fmt.Errorf("%s has no implementation %q that runs in this program", b.name, name)
	}
	conn, err := net.Dial("unix", os.Getenv(envSocket))
	if err != nil {
		return fmt.Errorf("$%s: %w; --worker is for processes that bench starts itself", envSocket, err)
	}
	defer conn.Close()
	s, end, err := all[i].serve(ctx)
	if err != nil {
		return err
	}
	defer end()
	return serve(conn, s)
}

// serve answers requests until the connection ends.
func serve(conn net.Conn, s subject) error {
	out := json.NewEncoder(conn)
	if err := out.Encode(answer{Versions: loaded}); err != nil {
		return err
	}
	requests := json.NewDecoder(conn)
	for {
		var r request
		var a answer
		err := requests.Decode(&r)
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		switch r.Do {
		case "prepare":
			a.facts, err = s.prepare(r.Case)
		case "sample":
			a.MS, err = s.sample(r.Calls)
		case "finish":
			err = s.finish()
		default:
			err = fmt.Errorf("request %q: want prepare, sample or finish", r.Do)
		}
		var unsupported errUnsupported
		if errors.As(err, &unsupported) {
			a.Unsupported = string(unsupported)
		} else if err != nil {
			a.Error = err.Error()
		}
		if err := out.Encode(a); err != nil {
			return err
		}
	}
}
