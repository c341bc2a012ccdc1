//go:build !resident

package xla

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/gomlx/compute"
	goxla "github.com/gomlx/go-xla/compute/xla"
	"github.com/gomlx/go-xla/pjrt"

	"github.com/shardbook/shardbook/internal/plugin"
	"github.com/shardbook/shardbook/lib/resident"
)

// Lend has a server open devices in this process for those who connect to it, such as a notebook's cells. Devices and
// programs stay until the process ends; arrays stay as long as the connection that made them, unless they are kept.
//
// Call it before the first Open: the devices' memory is shared with those who connect.
func Lend(s *resident.Server) error {
	file, at, err := plugin.ShareMemory()
	if err != nil {
		return err
	}
	lending.Store(true)
	s.Memory = resident.Share(file)
	l := &lender{at: at, clients: map[string]*lent{}, arrays: map[uint64]*lentArray{},
		programs: map[uint64]*lentProgram{}, compiled: map[[sha256.Size]byte]*lentProgram{}}
	resident.Handle(s, l.open)
	resident.Handle(s, l.register)
	resident.Handle(s, l.compile)
	resident.Handle(s, l.execute)
	resident.Handle(s, l.makeArray)
	resident.Handle(s, l.read)
	resident.Handle(s, l.copy)
	resident.Handle(s, l.free)
	resident.Handle(s, l.keep)
	resident.Handle(s, l.collectives)
	resident.Handle(s, l.operations)
	resident.Handle(s, l.met)
	resident.Handle(s, l.startProfile)
	resident.Handle(s, l.endProfile)
	resident.Handle(s, l.memory)
	return nil
}

// lending is whether the devices' memory is shared, so that it cannot be returned to the system after each use.
var lending atomic.Bool

// lender has what is lent, by numbers.
type lender struct {
	at uintptr // of the shared memory

	opening sync.Mutex
	clients map[string]*lent // by their options

	mu       sync.Mutex // guards what follows
	last     uint64     // number
	byNumber []*lent    // clients, from 1
	arrays   map[uint64]*lentArray
	programs map[uint64]*lentProgram
	compiled map[[sha256.Size]byte]*lentProgram
	profiler func() ([]event, error) // ends the recording that is going on
}

// lent is a backend.
type lent struct {
	*Backend
	inner  *goxla.Backend
	afresh bool // programs are compiled each time
	opened resident.Opened
}

func (l *lent) client() *pjrt.Client { return *backendClient.of(l.inner) }

// lentArray is an array.
type lentArray struct {
	*pjrt.Buffer
	of *lent
}

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

// open opens devices, or finds them.
func (l *lender) open(_ *resident.Session, o resident.Open) (resident.Opened, error) {
	l.opening.Lock()
	defer l.opening.Unlock()
	key := fmt.Sprintf("%+v", o) // maps are printed in order
	if found := l.clients[key]; found != nil {
		return found.opened, nil
	}
	options := []Option{Plugin(o.Plugin), CacheDir(o.CacheDir)}
	if o.Devices > 0 {
		options = append(options, Devices(o.Devices))
	}
	for name, option := range map[string]func() Option{"all canaries": AllCanaries, "afresh": CompileAfresh,
		"no kernels": NoKernels} {
		if o.Options[name] {
			options = append(options, option())
		}
	}
	b, err := OpenContext(context.Background(), options...)
	if err != nil {
		return resident.Opened{}, err
	}
	info := b.Info()
	own := &lent{Backend: b, inner: b.Backend.(*goxla.Backend), afresh: o.Options["afresh"], opened: resident.Opened{
		Platform: string(info.Platform), Plugin: info.Plugin, Source: info.Source, API: info.API}}
	for _, c := range info.Canaries {
		own.opened.Canaries = append(own.opened.Canaries, resident.Canary(c))
	}
	for i := range info.Devices {
		own.opened.Devices = append(own.opened.Devices, b.DeviceDescription(compute.DeviceNum(i)))
	}
	l.mu.Lock()
	l.byNumber = append(l.byNumber, own)
	own.opened.Client = uint64(len(l.byNumber))
	l.mu.Unlock()
	l.clients[key] = own
	return own.opened, nil
}

func (l *lender) backend(number uint64) (*lent, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if number < 1 || number > uint64(len(l.byNumber)) {
		return nil, fmt.Errorf("no devices have number %d", number)
	}
	return l.byNumber[number-1], nil
}

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
	if own == nil || !own.knownTo(b.Backend) {
		return resident.Done{}, fmt.Errorf("kernel %q cannot be called here", k.Name)
	}
	return resident.Done{OK: true}, nil
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

// array returns an array by its number.
func (l *lender) array(number uint64) (*lentArray, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.arrays[number]; a != nil {
		return a, nil
	}
	return nil, fmt.Errorf("no array has number %d: it has been freed or donated", number)
}

// add numbers an array, which is freed when the session ends.
func (l *lender) add(s *resident.Session, of *lent, b *pjrt.Buffer) (a resident.Array, err error) {
	var dims []int
	var device *pjrt.Device
	a.Offset = -1
	if a.Type, err = b.DType(); err == nil {
		dims, err = b.Dimensions()
	}
	if err == nil {
		device, err = b.Device()
	}
	if err != nil {
		return a, err
	}
	a.Dims, a.Device = slices.Clone(dims), of.client().NumForDevice(device)
	if of.info.Platform == plugin.CPU {
		if at, err := b.UnsafePointer(); err == nil {
			if offset := uintptr(at) - l.at; offset < resident.MemorySize {
				a.Offset = int64(offset)
			}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	a.ID = l.last
	l.arrays[a.ID] = &lentArray{b, of}
	if s != nil {
		s.Own(a.ID, func() { l.drop(a.ID) })
	}
	return a, nil
}

// drop frees an array.
func (l *lender) drop(number uint64) {
	l.mu.Lock()
	a := l.arrays[number]
	delete(l.arrays, number)
	l.mu.Unlock()
	if a != nil {
		_ = a.Destroy()
	}
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

// makeArray makes an array. Its content is in the request, or will be written by the cell.
func (l *lender) makeArray(s *resident.Session, m resident.Make) (a resident.Array, err error) {
	b, err := l.backend(m.Client)
	if err != nil {
		return a, err
	}
	devices := b.client().AddressableDevices()
	if m.Device < 0 || m.Device >= len(devices) {
		return a, fmt.Errorf("device %d: choose one from 0 to %d", m.Device, len(devices)-1)
	}
	if m.Content == nil && b.info.Platform == plugin.CPU && m.Type.SizeForDimensions(m.Dims...) > 0 {
		device := deviceHandle(devices[m.Device])
		at, err := plugin.MakeArray(b.owner.plugin, b.owner.client, device, int(m.Type), m.Dims)
		if err != nil {
			return a, err
		}
		return l.add(s, b, newPJRTBuffer(b.client(), at))
	}
	content := m.Content
	if content == nil {
		content = make([]byte, m.Type.SizeForDimensions(m.Dims...))
	}
	array, err := b.client().BufferFromHost().FromRawData(content, m.Type, m.Dims).ToDeviceNum(m.Device).Done()
	if err != nil {
		return a, err
	}
	return l.add(s, b, array)
}

// read returns an array's content.
func (l *lender) read(_ *resident.Session, r resident.Read) (c resident.Content, err error) {
	a, err := l.array(r.Array)
	if err != nil {
		return c, err
	}
	size, err := a.Size()
	if err != nil {
		return c, err
	}
	c.Bytes = make([]byte, size)
	return c, a.ToHost(c.Bytes)
}

// copy copies an array to a device, also to its own.
func (l *lender) copy(s *resident.Session, c resident.Copy) (to resident.Array, err error) {
	a, err := l.array(c.Array)
	if err != nil {
		return to, err
	}
	devices := a.of.client().AddressableDevices()
	if c.Device < 0 || c.Device >= len(devices) {
		return to, fmt.Errorf("device %d: choose one from 0 to %d", c.Device, len(devices)-1)
	}
	copied, err := copyArray(a, devices[c.Device])
	if err != nil {
		return to, err
	}
	return l.add(s, a.of, copied)
}

// copyArray copies an array. What PJRT copies between devices is complete only once a program uses it, so it goes by
// the host.
func copyArray(a *lentArray, to *pjrt.Device) (*pjrt.Buffer, error) {
	dtype, err := a.DType()
	if err != nil {
		return nil, err
	}
	dims, err := a.Dimensions()
	if err != nil {
		return nil, err
	}
	size, err := a.Size()
	if err != nil {
		return nil, err
	}
	content := make([]byte, size)
	if size > 0 {
		if err := a.ToHost(content); err != nil {
			return nil, err
		}
	}
	return a.of.client().BufferFromHost().FromRawData(content, dtype, dims).ToDevice(to).Done()
}

// free frees arrays. Programs stay for those who compile them again.
func (l *lender) free(s *resident.Session, f resident.Free) (resident.Done, error) {
	for _, number := range f.Arrays {
		s.Disown(number)
		l.drop(number)
	}
	return resident.Done{OK: true}, nil
}

// keep copies an array to a number that no session owns, or frees such copies.
func (l *lender) keep(_ *resident.Session, k resident.Keep) (to resident.Array, err error) {
	for _, number := range k.Free {
		l.drop(number)
	}
	if k.Array == 0 {
		return to, nil
	}
	a, err := l.array(k.Array)
	if err != nil {
		return to, err
	}
	device, err := a.Device()
	if err != nil {
		return to, err
	}
	copied, err := copyArray(a, device)
	if err != nil {
		return to, err
	}
	return l.add(nil, a.of, copied)
}

// asked returns a program as an executable that can be asked about itself.
func (l *lender) asked(number uint64) (*executable, error) {
	p, err := l.program(number)
	if err != nil {
		return nil, err
	}
	inner := new(goxla.Executable)
	*executableExec.of(inner) = p.LoadedExecutable
	return &executable{Executable: inner, backend: p.of.Backend}, nil
}

func (l *lender) collectives(_ *resident.Session, ask askCollectives) (is collectivesAre, err error) {
	e, err := l.asked(ask.Program)
	if err == nil {
		is.All, err = e.collectives()
	}
	return is, err
}

func (l *lender) operations(_ *resident.Session, ask askOperations) (is operationsAre, err error) {
	e, err := l.asked(ask.Program)
	if err == nil {
		is.All, err = e.operations()
	}
	return is, err
}

func (l *lender) met(_ *resident.Session, ask askMet) (resident.Done, error) {
	e, err := l.asked(ask.Program)
	if err == nil {
		err = e.met()
	}
	return resident.Done{OK: err == nil}, err
}

// startProfile starts a recording, which the session's end also ends.
func (l *lender) startProfile(s *resident.Session, start startProfile) (profileIs, error) {
	b, err := l.backend(start.Client)
	if err != nil {
		return profileIs{}, err
	}
	started, end := make(chan struct{}), make(chan struct{})
	type result struct {
		events []event
		err    error
	}
	got := make(chan result, 1)
	go func() {
		events, err := b.owner.record(func() error {
			close(started)
			<-end
			return nil
		})
		got <- result{events, err}
	}()
	select {
	case r := <-got:
		if errors.Is(r.err, ErrNoProfiler) {
			return profileIs{NoProfiler: true}, nil
		}
		return profileIs{}, r.err
	case <-started:
	}
	stop := sync.OnceValues(func() ([]event, error) {
		close(end)
		r := <-got
		return r.events, r.err
	})
	s.AtEnd(func() { _, _ = stop() })
	l.mu.Lock()
	defer l.mu.Unlock()
	l.profiler = stop
	return profileIs{}, nil
}

func (l *lender) endProfile(*resident.Session, endProfile) (is profileIs, err error) {
	l.mu.Lock()
	stop := l.profiler
	l.profiler = nil
	l.mu.Unlock()
	if stop == nil {
		return is, errors.New("no recording is going on")
	}
	is.Events, err = stop()
	return is, err
}

func (l *lender) memory(_ *resident.Session, ask askMemory) (is memoryIs, err error) {
	if ask.Free {
		plugin.FreeMemory()
	}
	is.Used, is.Unused = plugin.Memory()
	is.Processor = ownTime()
	return is, nil
}

// deviceHandle returns a device's handle (PJRT_Device*).
func deviceHandle(d *pjrt.Device) unsafe.Pointer { return *pointerIn(unsafe.Pointer(d), deviceC) }
