// Package resident is what a notebook's cells and its resident processes say to each other.
//
// A cell is a program that ends. What must outlive it is in other processes, which live as long as the notebook's
// kernel: one for values and charts, and one or more that own devices. A cell sends them requests over Unix sockets
// ([Call]), which a [Server] answers; the memory of CPU devices is shared ([Memory]).
//
// Only cells and the processes of package kernel use it.
package resident

import (
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"sync"
)

// frame is a request or an answer on the wire.
type frame struct {
	ID   uint64 // of the request; 0: it wants no answer
	Body any    // the request or the answer; nil if the request failed
	Err  string // why it failed
}

// Conn is a connection to a resident process. Its methods may be called from several goroutines at once.
type Conn struct {
	Memory *Memory // of its devices; nil: none, or it cannot be shared

	socket  io.Closer
	writing sync.Mutex // guards out
	out     *gob.Encoder

	mu      sync.Mutex // guards what follows
	last    uint64
	waiting map[uint64]chan frame
	gone    error // why there will be no more answers

	why func(error) error // tells more about it; may be nil
}

// ErrGone is wrapped by the errors of requests to a process that has ended.
var ErrGone = errors.New("the process has ended")

// Dial connects to the process that listens at a socket.
func Dial(path string) (*Conn, error) { return dial(path, nil) }

func dial(path string, why func(error) error) (*Conn, error) {
	socket, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	memory, err := receiveMemory(socket)
	if err != nil {
		socket.Close()
		return nil, err
	}
	c := &Conn{Memory: memory, socket: socket, out: gob.NewEncoder(socket), why: why,
		waiting: map[uint64]chan frame{}}
	go c.receive(gob.NewDecoder(socket))
	return c, nil
}

// Close ends the connection. The process then frees what was made over it.
func (c *Conn) Close() error { return c.socket.Close() }

// receive hands answers to those who wait for them.
func (c *Conn) receive(in *gob.Decoder) {
	for {
		var answer frame
		err := in.Decode(&answer)
		c.mu.Lock()
		if err != nil {
			c.mu.Unlock()
			gone := fmt.Errorf("%w (%w)", ErrGone, err)
			if c.why != nil {
				gone = c.why(gone)
			}
			c.mu.Lock()
			c.gone = gone
			for _, wait := range c.waiting {
				close(wait)
			}
			c.mu.Unlock()
			return
		}
		wait := c.waiting[answer.ID]
		delete(c.waiting, answer.ID)
		c.mu.Unlock()
		if wait != nil {
			wait <- answer
		}
	}
}

// register makes a type known to gob, under a name that all processes agree on.
func register(of any) { gob.Register(of) }

// Call sends a request and waits for the answer. The error is the process's own, or wraps [ErrGone].
func Call[A any](c *Conn, request any) (answer A, err error) {
	register(request)
	register(answer)
	wait := make(chan frame, 1)
	c.mu.Lock()
	if c.gone != nil {
		defer c.mu.Unlock()
		return answer, c.gone
	}
	c.last++
	id := c.last
	c.waiting[id] = wait
	c.mu.Unlock()
	if err := c.send(frame{ID: id, Body: request}); err != nil {
		c.mu.Lock()
		delete(c.waiting, id)
		c.mu.Unlock()
		return answer, err
	}
	got, ok := <-wait
	if !ok {
		return answer, c.gone
	}
	if got.Err != "" {
		return answer, errors.New(got.Err)
	}
	answer, ok = got.Body.(A)
	if !ok {
		return answer, fmt.Errorf("the answer to a %T is a %T", request, got.Body)
	}
	return answer, nil
}

// Tell sends a request that has no answer.
func (c *Conn) Tell(request any) {
	register(request)
	_ = c.send(frame{Body: request}) // if the process has ended, there is nothing to do for it
}

func (c *Conn) send(f frame) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := c.out.Encode(f); err != nil {
		return fmt.Errorf("%w (sending a %v: %w)", ErrGone, reflect.TypeOf(f.Body), err)
	}
	return nil
}
