package xla

import (
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
)

// compiled is a graph function that is compiled for each set of input shapes; all programs are based on it.
type compiled struct {
	backend *Backend
	exec    *graph.Exec
	donated []int                      // inputs whose memory the program may overwrite
	last    atomic.Pointer[executable] // most recently compiled or run

	closing sync.RWMutex // held for reading while the program is in use
	closed  bool
}

// compileLater sets a program's graph function, and gives it a unique name, by which the backend finds donated inputs.
func compileLater(c *compiled, b *Backend, fn any, donated []int) error {
	if err := checkDonated(donated, inputsOf(fn)); err != nil {
		return err
	}
	exec, err := newExec(b, fn)
	if err != nil {
		return err
	}
	exec.WithName(fmt.Sprintf("%s/%d", functionName(fn), programs.Add(1)))
	if len(donated) > 0 {
		donations.Store(exec.Name(), donated)
	}
	c.backend, c.exec, c.donated = b, exec, donated
	runtime.AddCleanup(c, func(name string) { donations.Delete(name) }, exec.Name())
	return nil
}

// programs counts programs, for unique names.
var programs atomic.Int64

// donations has the donated inputs of programs, by their names. It is no field of [Backend], since a package that uses
// a type with a sync.Map, such as a notebook's cell, compiles all of the map's methods.
var donations sync.Map

// number matches the end of a program's name: its number, and GoMLX's for the shapes of its inputs.
var number = regexp.MustCompile(`/\d+(#\d+)?$`)

// withoutNumber returns the name that a program has in every process.
func withoutNumber(name string) string { return number.ReplaceAllString(name, "") }

// build compiles the program for these inputs unless it has been. The backend cannot be closed meanwhile: GoMLX would
// panic, and others that wait for the same program would wait forever (docs/upstream.md, "a panic while a program is
// compiled").
func (c *compiled) build(inputs ...shapes.Shape) (*graph.Graph, error) {
	c.backend.building.RLock()
	defer c.backend.building.RUnlock()
	if c.backend.IsFinalized() {
		return nil, errors.New("the backend is closed: open another")
	}
	g, err := c.exec.Compile(inputs...)
	return g, plain(err)
}

// donates reports whether the program may overwrite input i.
func (c *compiled) donates(i int) bool { return slices.Contains(c.donated, i) }

// use prevents that the program is closed, until the caller unlocks closing for reading. It returns an error if the
// program is closed.
func (c *compiled) use() error {
	c.closing.RLock()
	if c.closed {
		c.closing.RUnlock()
		return errors.New("the program is closed: compile another")
	}
	return nil
}

// close waits until none of the compiled programs runs, and frees them.
func (c *compiled) close() {
	c.closing.Lock()
	defer c.closing.Unlock()
	c.closed = true
	c.exec.Finalize()
	donations.Delete(c.exec.Name())
}

// latest returns a property of the executable that was most recently compiled or run.
func latest[T any](c *compiled, ask func(*executable) (T, error)) (answer T, err error) {
	if err := c.use(); err != nil {
		return answer, err
	}
	defer c.closing.RUnlock()
	e := c.last.Load()
	if e == nil {
		return answer, errors.New("the program is not compiled yet: call Prepare or Call first")
	}
	return ask(e)
}

func (c *compiled) memory() (Memory, error) {
	return latest(c, func(e *executable) (Memory, error) { return e.memory(), nil })
}
