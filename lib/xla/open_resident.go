//go:build resident

package xla

import (
	"context"
	"errors"
	"fmt"
	"time"

	goxla "github.com/gomlx/go-xla/compute/xla"
	"github.com/gomlx/go-xla/pjrt"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/plugin"
	"github.com/shardbook/shardbook/lib/resident"
	"github.com/shardbook/shardbook/lib/xla/foreign"
	"github.com/shardbook/shardbook/lib/xplane"
)

// owner has the devices of a backend: a process beside the notebook's kernel, which serves what Lend handles.
type owner struct {
	conn   *resident.Conn
	client uint64
}

// open opens the devices in that process. It checked them with canaries when it opened them first.
func (c config) open(context.Context) (*Backend, error) {
	conn, err := resident.Devices()
	if err != nil {
		return nil, err
	}
	opened, err := resident.Call[resident.Opened](conn, resident.Open{Devices: c.devices, Share: c.share, GPU: c.gpu,
		Plugin: c.plugin, CacheDir: c.cacheDir, Options: map[string]bool{"all canaries": c.allCanaries, "afresh": c.afresh,
			"no kernels": c.noKernels, "CUDA kernels": c.cudaKernels, "no CUDA graphs": c.noCUDAGraphs}})
	if err != nil {
		return nil, err
	}
	inner, err := goxla.NewWithOptions(pjrt.Opened(conn, opened), nil)
	if err != nil {
		return nil, err
	}
	inner.DotGeneralUseTF32 = c.tf32 && inner.IsCUDA() // go-xla's default is true
	n := opened.Count
	b := &Backend{Backend: inner, owner: owner{conn, opened.Client}, ledger: newLedger(n), share: inner.NumDevices(),
		target: c.gpu != "", capability: opened.Capability,
		kernels: !c.noKernels && inner.IsCPU(), cudaKernels: c.cudaKernels && inner.IsCUDA(),
		info: Info{Devices: n, Platform: plugin.Platform(opened.Platform), Plugin: opened.Plugin,
			Source: opened.Source, API: opened.API}}
	for _, canary := range opened.Canaries {
		b.info.Canaries = append(b.info.Canaries, Canary(canary))
	}
	return b, nil
}

func init() {
	resident.ArrayOf = func(tensor any) uint64 {
		t, ok := tensor.(*tensors.Tensor)
		if !ok || !t.IsOnAnyDevice() {
			return 0
		}
		backend, err := t.Backend()
		b, ours := backend.(*Backend)
		device, e := t.Device()
		if err != nil || e != nil || !ours {
			return 0
		}
		on, err := t.Buffer(b, device)
		if err != nil {
			return 0
		}
		return pjrtBuffer(on.(*buffer).Buffer).Array().ID
	}
}

// forget does nothing: the process keeps the devices open for later cells.
func (o owner) forget() {}

// register makes a kernel callable: one that the process has too, or a function of a library, which it loads.
func (o owner) register(k *Kernel) error {
	request := resident.Kernel{Client: o.client, Name: k.name}
	handler, err := k.handler()
	if err != nil {
		return err
	}
	if handler != nil {
		var ok bool
		if request.Library, request.Symbol, ok = foreign.Where(handler); !ok {
			return fmt.Errorf("kernel %q is in the cell's own program, which the process with the devices cannot call", k.name)
		}
	}
	_, err = resident.Call[resident.Done](o.conn, request)
	return err
}

// ErrNoProfiler is wrapped by the error of Profile if the plugin has no profiler, like XLA's for CPUs.
var ErrNoProfiler = errors.New("it has no profiler (XLA's for CPUs has none, that for CUDA has)")

// record runs f while XLA's profiler records.
func (o owner) record(f func() error) (*xplane.Profile, error) {
	started, err := resident.Call[profileIs](o.conn, startProfile{o.client})
	if err != nil {
		return nil, err
	}
	if started.NoProfiler {
		return nil, ErrNoProfiler
	}
	failed := f()
	got, err := resident.Call[profileIs](o.conn, endProfile{o.client})
	if failed != nil {
		return nil, failed
	}
	return got.Profile, err
}

func (e *executable) ask() (*resident.Conn, uint64) {
	return e.backend.owner.conn, loadedExecutable(e.Executable).ID()
}

// collectives lists the program's collectives.
func (e *executable) collectives() ([]between, error) {
	conn, program := e.ask()
	is, err := resident.Call[collectivesAre](conn, askCollectives{program})
	return is.All, err
}

// operations lists the program's operations.
func (e *executable) operations() ([]Operation, error) {
	conn, program := e.ask()
	is, err := resident.Call[operationsAre](conn, askOperations{program})
	return is.All, err
}

// met checks the collectives by kernels.
func (e *executable) met() error {
	conn, program := e.ask()
	_, err := resident.Call[resident.Done](conn, askMet{program})
	return err
}

// deviceMemory is [Backend.DeviceMemory].
func (b *Backend) deviceMemory(device int) (DeviceMemory, error) {
	return resident.Call[DeviceMemory](b.owner.conn, askDevice{b.owner.client, device})
}

// FreeMemory returns the memory of buffers that are free to the operating system, as debug.FreeOSMemory does for Go's.
func FreeMemory() { memoryOf(true) }

// KeptMemory returns the bytes of the large buffers of XLA on CPUs that are in use, and of the free ones that the
// process with the devices keeps.
func KeptMemory() (used, unused int) {
	is := memoryOf(false)
	return is.Used, is.Unused
}

// ProcessorTime returns the time that processors have worked for this program and its devices so far, in all threads.
func ProcessorTime() time.Duration { return ownTime() + memoryOf(false).Processor }

func memoryOf(free bool) (is memoryIs) {
	conn, err := resident.Devices()
	if err == nil {
		is, _ = resident.Call[memoryIs](conn, askMemory{free})
	}
	return is
}
