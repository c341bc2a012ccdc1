package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/systest"
)

// TestLeavesNothing ends proxies in all ways, each a process with a gopls.
func TestLeavesNothing(t *testing.T) {
	type ending struct {
		name string
		end  func(proxy *exec.Cmd, c *client)
	}
	endings := []ending{
		{"the client goes", func(_ *exec.Cmd, c *client) { c.conn.Close() }},
		{"a signal", func(proxy *exec.Cmd, _ *client) { proxy.Process.Signal(os.Interrupt) }},
	}
	if runtime.GOOS == "linux" { // elsewhere gopls sees that its input has ended, which the fake one ignores
		endings = append(endings, ending{"it is killed", func(proxy *exec.Cmd, _ *client) { proxy.Process.Kill() }})
	}
	for _, test := range endings {
		t.Run(test.name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "socket")
			proxy := exec.Command(os.Args[0], "-listen", "unix;"+socket)
			proxy.Env = append(os.Environ(), envRole+"=proxy")
			must.Do(t, proxy.Start())
			c := dial(t, socket)
			defer c.conn.Close()
			c.initialize()
			pid := c.knows().PID
			if _, err := os.Stat(socket); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the socket of a connected client: %v", err)
			}
			test.end(proxy, c)
			_ = proxy.Wait()
			gone(t, pid)
		})
	}
}

func TestServe(t *testing.T) {
	defer systest.NoLeaks(t)()
	socket := filepath.Join(t.TempDir(), "socket")
	must.Refuse(t, "TCP", serve(t.Context(), "localhost:1", time.Minute, fakeSettings()), "localhost:1", "unix;PATH")
	must.Refuse(t, "nobody connects", serve(t.Context(), "unix;"+socket, time.Millisecond, fakeSettings()), "timeout")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	must.Do(t, serve(ctx, "unix;"+socket, time.Hour, fakeSettings()))
	if _, err := os.Stat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket without a client: %v", err)
	}
}

func TestRSS(t *testing.T) {
	if used := rss(os.Getpid()); runtime.GOOS == "linux" && (used < 1<<20 || used > 1<<34) {
		t.Errorf("this process has %d bytes", used)
	}
	if used := rss(-1); used != 0 {
		t.Errorf("no process has %d bytes", used)
	}
}
