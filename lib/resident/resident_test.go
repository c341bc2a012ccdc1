package resident

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/systest"
)

type (
	add    struct{ A, B int }
	sum    struct{ Is int }
	broken struct{ How string }
	count  struct{ By int }
	hold   struct{ Number uint64 }
)

// serve serves what the tests ask until the test ends, and returns a connection.
func serve(t *testing.T, s *Server) *Conn {
	t.Helper()
	t.Cleanup(systest.NoLeaks(t))
	path := filepath.Join(t.TempDir(), "socket")
	l := must.Get(net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"}))(t)
	var serving sync.WaitGroup
	serving.Go(func() { must.Do(t, s.Serve(l)) })
	c := must.Get(Dial(path))(t)
	t.Cleanup(func() {
		must.Do(t, c.Close())
		must.Do(t, l.Close())
		serving.Wait()
	})
	return c
}

// Many requests at once each get their own answer, whatever order they are answered in.
func TestCalls(t *testing.T) {
	var s Server
	Handle(&s, func(_ *Session, q add) (sum, error) { return sum{q.A + q.B}, nil })
	c := serve(t, &s)
	var all sync.WaitGroup
	for worker := range 8 {
		all.Go(func() {
			for i := range 100 {
				if got, err := Call[sum](c, add{worker, 10 * i}); err != nil || got.Is != worker+10*i {
					t.Errorf("%d + %d: %v, %v", worker, 10*i, got, err)
				}
			}
		})
	}
	all.Wait()
}

// Whatever goes wrong in a handler is the request's error, and the connection stays.
func TestErrors(t *testing.T) {
	var s Server
	Handle(&s, func(_ *Session, q broken) (sum, error) {
		if q.How == "panic" {
			panic("it panics")
		}
		return sum{}, errors.New("it fails")
	})
	c := serve(t, &s)
	for how, want := range map[string]string{"panic": "it panics", "error": "it fails"} {
		if _, err := Call[sum](c, broken{how}); err == nil || err.Error() != want {
			t.Errorf("%s: %v", how, err)
		}
	}
	if _, err := Call[sum](c, hold{1}); err == nil || !strings.Contains(err.Error(), "does not know") {
		t.Errorf("an unknown request: %v", err)
	}
	if _, err := Call[broken](c, broken{"error"}); err == nil {
		t.Error("no error")
	}
}

// Requests without an answer are handled in order, before what follows them.
func TestTell(t *testing.T) {
	var s Server
	var total atomic.Int64
	Handle(&s, func(_ *Session, q count) (sum, error) { return sum{int(total.Add(int64(q.By)))}, nil })
	c := serve(t, &s)
	for range 100 {
		c.Tell(count{1})
	}
	if got := must.Get(Call[sum](c, count{0}))(t); got.Is != 100 {
		t.Errorf("%d of 100 were handled", got.Is)
	}
}

// At the end of a connection what it owns is let go, once its requests have ended; calls then fail.
func TestEnd(t *testing.T) {
	var s Server
	begun, go_, free := make(chan bool), make(chan bool), make(chan string, 3)
	Handle(&s, func(session *Session, q hold) (sum, error) {
		session.Own(q.Number, func() { free <- fmt.Sprint("owned ", q.Number) })
		if q.Number == 2 {
			session.Disown(1)
			session.AtEnd(func() { free <- "end" })
			begun <- true
			<-go_
			free <- "handler"
		}
		return sum{}, nil
	})
	c := serve(t, &s)
	must.Get(Call[sum](c, hold{1}))(t)
	failed := make(chan error)
	go func() {
		_, err := Call[sum](c, hold{2})
		failed <- err
	}()
	<-begun
	must.Do(t, c.socket.(*net.UnixConn).CloseWrite()) // as when a process ends; the test closes the rest
	must.Do(t, c.socket.(*net.UnixConn).CloseRead())
	if err := <-failed; !errors.Is(err, ErrGone) {
		t.Errorf("a call that has no answer: %v", err)
	}
	if _, err := Call[sum](c, hold{3}); !errors.Is(err, ErrGone) {
		t.Errorf("a call afterwards: %v", err)
	}
	go_ <- true
	for _, want := range []string{"handler", "end", "owned 2"} {
		if got := <-free; got != want {
			t.Errorf("%q is let go, want %q", got, want)
		}
	}
}
