package resident

import (
	"bufio"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"sync"
	"time"
)

// patience is how long requests of a cell that has ended may run.
const patience = 3 * time.Second

// Server answers the requests of cells. Give it handlers with [Handle] before it serves.
type Server struct {
	Memory *Memory // is shared with those who connect; nil: none

	// Stuck is called when a cell has ended and its requests still run some seconds later, as when a long program was
	// interrupted, which XLA cannot do.
	Stuck func()

	handlers map[reflect.Type]func(*Session, any) (any, error)

	ended sync.Map // of *Session: those whose cells have ended while their requests run
}

// Handle has a server answer requests of type Q with f. Requests of one connection may run at the same time.
func Handle[Q, A any](s *Server, f func(*Session, Q) (A, error)) {
	var q Q
	var a A
	register(q)
	register(a)
	if s.handlers == nil {
		s.handlers = map[reflect.Type]func(*Session, any) (any, error){}
	}
	s.handlers[reflect.TypeFor[Q]()] = func(c *Session, request any) (any, error) { return f(c, request.(Q)) }
}

// Session is one connection, of one cell.
type Session struct {
	running sync.WaitGroup
	mu      sync.Mutex
	atEnd   []func()
	owned   map[uint64]func()
}

// Own has f run at the end unless the number is disowned before.
func (s *Session) Own(number uint64, f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owned == nil {
		s.owned = map[uint64]func(){}
	}
	s.owned[number] = f
}

// Disown undoes Own.
func (s *Session) Disown(number uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.owned, number)
}

// AtEnd has f run once the cell has ended and none of its requests runs any more.
func (s *Session) AtEnd(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.atEnd = append(s.atEnd, f)
}

// Serve answers the connections that a listener accepts, until it is closed. It does not wait for requests that run.
func (s *Server) Serve(l *net.UnixListener) error {
	for {
		socket, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		go s.serve(socket)
	}
}

// serve answers one connection until the cell ends.
func (s *Server) serve(socket *net.UnixConn) {
	defer socket.Close()
	session := &Session{}
	defer func() {
		s.ended.Store(session, true)
		defer s.ended.Delete(session)
		if s.Stuck != nil {
			defer time.AfterFunc(patience, s.Stuck).Stop()
		}
		session.running.Wait()
		for _, f := range session.atEnd {
			f()
		}
		for _, f := range session.owned {
			f()
		}
	}()
	// The next cell must not begin in a process that may be about to be ended.
	for other := range s.ended.Range {
		other.(*Session).running.Wait()
	}
	if err := s.Memory.send(socket); err != nil {
		return
	}
	var writing sync.Mutex
	buffered := bufio.NewWriter(socket)
	out := gob.NewEncoder(buffered)
	answer := func(f frame) {
		writing.Lock()
		defer writing.Unlock()
		err := out.Encode(f)
		if err == nil {
			err = buffered.Flush()
		}
		if err != nil { // also if a handler's answer cannot be encoded: the cell must not wait for it
			socket.Close()
		}
	}
	in := gob.NewDecoder(bufio.NewReader(socket))
	for {
		var request frame
		err := in.Decode(&request)
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
				answer(frame{Err: err.Error()})
			}
			return
		}
		if request.ID == 0 { // in order, since what follows may rely on it
			s.handle(session, request)
			continue
		}
		session.running.Go(func() { answer(s.handle(session, request)) })
	}
}

// handle runs a request's handler. A panic is an error of the request.
func (s *Server) handle(session *Session, request frame) (answer frame) {
	answer.ID = request.ID
	defer func() {
		if problem := recover(); problem != nil {
			answer.Body, answer.Err = nil, fmt.Sprint(problem)
		}
	}()
	handler := s.handlers[reflect.TypeOf(request.Body)]
	if handler == nil {
		answer.Err = fmt.Sprintf("the process does not know requests of type %T", request.Body)
		return answer
	}
	body, err := handler(session, request.Body)
	if err != nil {
		answer.Err = err.Error()
		return answer
	}
	answer.Body = body
	return answer
}
