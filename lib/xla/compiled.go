package xla

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
)

// compiled is what all programs are: a graph function, compiled for each set of input shapes.
type compiled struct {
	backend *Backend
	exec    *graph.Exec
	donated []int                      // inputs whose memory the program may overwrite
	last    atomic.Pointer[executable] // the one most recently compiled or run

	closing sync.RWMutex // held for reading while the program is in use
	closed  bool
}

// compileLater gives a program its graph function, and a name of its own, by which the backend knows what it donates.
func compileLater[F graph.ExecGraphFn](c *compiled, b *Backend, fn F, donated []int) error {
	exec, err := graph.NewExec(b, ThrowingErrors(fn))
	if err != nil {
		return err
	}
	exec.WithName(fmt.Sprintf("%s/%d", functionName(fn), programs.Add(1)))
	b.donations.set(exec.Name(), donated)
	c.backend, c.exec, c.donated = b, exec, donated
	return nil
}

// programs counts programs, so that each has a name of its own.
var programs atomic.Int64

// number matches the end of a program's name: its number, and GoMLX's for the shapes of its inputs.
var number = regexp.MustCompile(`/\d+(#\d+)?$`)

// withoutNumber is the name that a program has in every process.
func withoutNumber(name string) string { return number.ReplaceAllString(name, "") }

// build compiles the program for these inputs unless it has been. The backend is not closed meanwhile: GoMLX would
// panic, and whoever waits for the same program would wait for ever (docs/upstream.md, "a panic while a program is
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

// donates says whether the program may overwrite input i.
func (c *compiled) donates(i int) bool { return slices.Contains(c.donated, i) }

// use keeps the program from being closed until closing is unlocked for reading. It
// returns an error if it is closed.
func (c *compiled) use() error {
	c.closing.RLock()
	if c.closed {
		c.closing.RUnlock()
		return errors.New("the program is closed: compile another")
	}
	return nil
}

// close frees the compiled programs, once none of them runs.
func (c *compiled) close() {
	c.closing.Lock()
	defer c.closing.Unlock()
	c.closed = true
	c.exec.Finalize()
	c.backend.donations.forget(c.exec.Name())
}

// latest asks the program most recently compiled or run.
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
