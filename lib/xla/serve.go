//go:build !resident

package xla

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"
	"sync/atomic"

	goxla "github.com/gomlx/go-xla/compute/xla"
	"github.com/gomlx/go-xla/pjrt"

	"github.com/shardbook/shardbook/internal/plugin"
	"github.com/shardbook/shardbook/lib/resident"
	"github.com/shardbook/shardbook/lib/xplane"
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
	resident.Handle(s, l.deviceMemory)
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
	profiler func() (*xplane.Profile, error) // ends the recording that is going on
}

// lent is a backend.
type lent struct {
	*Backend
	inner  *goxla.Backend
	afresh bool // programs are compiled each time
	opened resident.Opened
}

func (l *lent) client() *pjrt.Client { return *backendClient.of(l.inner) }

// open opens devices, or finds them.
func (l *lender) open(_ *resident.Session, o resident.Open) (resident.Opened, error) {
	l.opening.Lock()
	defer l.opening.Unlock()
	key := fmt.Sprintf("%+v", o) // maps are printed in order
	if found := l.clients[key]; found != nil {
		return found.opened, nil
	}
	options := []Option{Plugin(o.Plugin), CacheDir(o.CacheDir), CompileFor(o.GPU)}
	if o.Devices > 0 {
		options = append(options, Devices(o.Devices))
	}
	if o.Share > 0 {
		options = append(options, Share(o.Share))
	}
	for name, option := range map[string]func() Option{"all canaries": AllCanaries, "afresh": CompileAfresh,
		"no kernels": NoKernels, "CUDA kernels": CUDAKernels, "no CUDA graphs": NoCUDAGraphs} {
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
		Count: info.Devices, Platform: string(info.Platform), Plugin: info.Plugin, Source: info.Source, API: info.API,
		Capability: b.capability}}
	for _, c := range info.Canaries {
		own.opened.Canaries = append(own.opened.Canaries, resident.Canary(c))
	}
	for _, device := range own.client().AddressableDevices() {
		about, err := device.GetDescription()
		if err != nil {
			return resident.Opened{}, err
		}
		own.opened.Devices = append(own.opened.Devices, about.DebugString())
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
