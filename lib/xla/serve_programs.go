//go:build !resident

package xla

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"runtime"
	"slices"

	"github.com/gomlx/go-xla/pjrt"

	"github.com/shardbook/shardbook/internal/plugin"
	"github.com/shardbook/shardbook/lib/resident"
)

// lentProgram is a compiled program, which stays for those who compile it again.
type lentProgram struct {
	*pjrt.LoadedExecutable
	of     *lent
	number uint64
	key    [sha256.Size]byte
	ready  chan struct{}
	err    error
	about  resident.Compiled

	users int    // connections that have it, each once for each time that it compiled it
	used  uint64 // when it was compiled last, in numbers
}

// unusedPrograms is how many programs stay that no connection has; those that were compiled last.
const unusedPrograms = 256

// register makes a kernel callable: one of this process's, or a function of a library.
func (l *lender) register(_ *resident.Session, k resident.Kernel) (resident.Done, error) {
	b, err := l.backend(k.Client)
	if err != nil {
		return resident.Done{}, err
	}
	if k.Library != "" {
		handler, err := plugin.Symbol(k.Library, k.Symbol)
		if err != nil {
			return resident.Done{}, err
		}
		return resident.Done{OK: true}, plugin.RegisterKernel(b.owner.plugin, k.Name, handler)
	}
	own := kernels.find(func(own *Kernel) bool { return own.name == k.Name })
	if own == nil {
		return resident.Done{}, fmt.Errorf("kernel %q is not in the process that has the devices", k.Name)
	}
	return resident.Done{OK: true}, own.registered(b.Backend)
}

// compile compiles a program, unless it has been.
func (l *lender) compile(s *resident.Session, c resident.Compile) (resident.Compiled, error) {
	b, err := l.backend(c.Client)
	if err != nil {
		return resident.Compiled{}, err
	}
	key := sha256.Sum256(fmt.Appendf(nil, "%d %d %d %v %s", c.Client, c.Strategy, c.Devices, c.Assignment, c.Program))
	l.mu.Lock()
	p := l.compiled[key]
	if p == nil || b.afresh {
		l.last++
		p = &lentProgram{of: b, number: l.last, key: key, ready: make(chan struct{})}
		l.compiled[key] = p
		l.mu.Unlock()
		p.compile(c)
		l.mu.Lock()
		if l.programs[p.number] = p; p.err != nil {
			delete(l.programs, p.number)
			delete(l.compiled, key)
		}
		close(p.ready)
	}
	l.last++
	p.users++
	p.used = l.last
	l.mu.Unlock()
	<-p.ready
	s.AtEnd(func() { l.leave(p) })
	return p.about, p.err
}

// leave is called when a connection that has compiled a program ends. Programs are freed only then: the cells that
// follow often compile the same ones.
func (l *lender) leave(p *lentProgram) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p.users--
	var unused []*lentProgram
	for _, p := range l.programs {
		if p.users == 0 {
			unused = append(unused, p)
		}
	}
	slices.SortFunc(unused, func(a, b *lentProgram) int { return cmp.Compare(a.used, b.used) })
	for _, p := range unused[:max(0, len(unused)-unusedPrograms)] {
		delete(l.programs, p.number)
		if l.compiled[p.key] == p {
			delete(l.compiled, p.key)
		}
		_ = p.Destroy()
	}
}

func (p *lentProgram) compile(c resident.Compile) {
	config := p.of.client().Compile().WithStableHLO(c.Program)
	switch c.Strategy {
	case resident.SPMD:
		config = config.WithSPMD(c.Devices)
	case resident.Shardy:
		config = config.WithShardy(c.Devices)
	}
	if c.Assignment != nil {
		config = config.WithDeviceAssignment(c.Assignment)
	}
	defer func() { // go-xla panics in places
		if problem := recover(); problem != nil {
			p.err = fmt.Errorf("compiling a program: %v", problem)
		}
	}()
	if p.LoadedExecutable, p.err = config.Done(); p.err != nil {
		return
	}
	use := func(m pjrt.ExecutableMemoryUsageStats) resident.MemoryUse {
		return resident.MemoryUse{Code: m.GeneratedCode, Inputs: m.Inputs, Outputs: m.Outputs, Aliases: m.Aliases,
			Temporary: m.Temporary}
	}
	p.about = resident.Compiled{Program: p.number, Name: p.Name, Outputs: p.NumOutputs,
		OnDevice: use(p.OnDeviceMemoryUsageStats), OnHost: use(p.OnHostMemoryUsageStats)}
}

func (l *lender) program(number uint64) (*lentProgram, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.programs[number]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("no program has number %d", number)
}

// execute runs a program.
func (l *lender) execute(s *resident.Session, e resident.Execute) (done resident.Executed, err error) {
	p, err := l.program(e.Program)
	if err != nil {
		return done, err
	}
	inputs := make([]*pjrt.Buffer, len(e.Inputs))
	for i, number := range e.Inputs {
		a, err := l.array(number)
		if err != nil {
			return done, fmt.Errorf("input %d: %w", i, err)
		}
		inputs[i] = a.Buffer
	}
	run := p.Execute(inputs...)
	if len(e.Donate) > 0 {
		run = run.SetDonate(e.Donate)
	}
	if e.Device >= 0 {
		run = run.OnDeviceByNum(e.Device)
	}
	outputs, err := run.Done()
	runtime.KeepAlive(inputs)
	if err != nil {
		return done, err
	}
	for i, donated := range e.Donate {
		if donated {
			s.Disown(e.Inputs[i])
			l.drop(e.Inputs[i])
		}
	}
	for _, output := range outputs {
		a, err := l.add(s, p.of, output)
		if err != nil {
			return done, err
		}
		done.Outputs = append(done.Outputs, a)
	}
	return done, nil
}
