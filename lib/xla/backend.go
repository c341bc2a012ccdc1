// Package xla opens XLA with N devices as a GoMLX backend, and runs programs on all of them over a mesh with named
// axes.
//
// On a CPU any number of devices share one process, with real collectives between them; on CUDA the devices are the
// GPUs. A backend implements GoMLX's compute.Backend, so whatever GoMLX builds runs on it.
package xla

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/shapes"

	"github.com/shardbook/shardbook/internal/plugin"
)

// Backend is XLA with a number of devices. It implements GoMLX's compute.Backend, and counts the live buffers on each
// device. Its methods may be called from several goroutines at once.
type Backend struct {
	compute.Backend // go-xla's, which builds graphs and owns the devices
	info            Info
	ledger          *ledger
	owner           owner
	kernels         bool         // programs may call the kernels of internal/dense
	cudaKernels     bool         // packages' CUDA kernels replace XLA's operations
	share           int          // the plugin's devices that ours share, as many as there are if each has its own
	target          bool         // programs are compiled for devices that are not here
	capability      [2]int       // the least compute capability of the GPUs; zero on CPUs
	building        sync.RWMutex // held for reading while a program is compiled
}

// Info describes a backend's devices and plugin.
type Info struct {
	Devices  int             // number of devices
	Platform plugin.Platform // "cpu" or "cuda"
	Plugin   string          // path of the PJRT plugin
	Source   string          // how the plugin was found
	API      string          // its version of the PJRT API
	Canaries []Canary        // the computations that were checked when it was opened; all were right
}

// Canary is a small computation that was run on the devices when the backend was opened, and compared with plain Go.
// Its numbers are small integers and halves, exact in every type and order of summation, so the results must be equal.
type Canary struct {
	Name  string // what was computed
	Wrong int    // the number of wrong values
	Of    int    // the number of values
}

// OK reports whether all values were right.
func (c Canary) OK() bool { return c.Wrong == 0 }

// String returns what was computed and whether it was right.
func (c Canary) String() string {
	if c.OK() {
		return c.Name + ": right"
	}
	return fmt.Sprintf("%s: %d of %d values wrong", c.Name, c.Wrong, c.Of)
}

// ErrTooFew is wrapped by the error of Open for more devices than there are GPUs.
var ErrTooFew = errors.New("too few devices")

// ErrNoPlugin is wrapped by the error of Open if there is no plugin for the devices that were asked for.
var ErrNoPlugin = plugin.ErrNotFound

// Open opens a backend. It finds the PJRT plugin, or installs it, and rejects one that computes wrongly: it runs a few
// small programs (canaries) and compares their results with plain Go.
//
// Each call makes its own devices. Close the backend after use.
func Open(options ...Option) (*Backend, error) {
	return OpenContext(context.Background(), options...)
}

// OpenContext is Open with a context for the installation of a plugin.
func OpenContext(ctx context.Context, options ...Option) (*Backend, error) {
	c, err := newConfig(options)
	if err != nil {
		return nil, err
	}
	return c.open(ctx)
}

// Info returns the backend's devices and plugin.
func (b *Backend) Info() Info { return b.info }

// Close waits until nothing is being compiled and frees the devices. Tensors on them become invalid. It may be called
// more than once.
func (b *Backend) Close() {
	b.building.Lock()
	defer b.building.Unlock()
	b.owner.forget()
	b.Backend.Finalize()
	b.ledger.clear()
}

// BufferFromFlatData copies a flat slice to a device.
func (b *Backend) BufferFromFlatData(device compute.DeviceNum, flat any, shape shapes.Shape) (compute.Buffer, error) {
	if err := b.has(device); err != nil {
		return nil, err
	}
	return b.own(device)(b.Backend.BufferFromFlatData(b.physical(device), flat, shape))
}

// NewSharedBuffer makes a buffer whose memory Go and the device share. Only CPU devices support it.
func (b *Backend) NewSharedBuffer(device compute.DeviceNum, shape shapes.Shape) (compute.Buffer, any, error) {
	if err := b.has(device); err != nil {
		return nil, nil, err
	}
	inner, flat, err := b.Backend.NewSharedBuffer(b.physical(device), shape)
	owned, err := b.own(device)(inner, err)
	return owned, flat, err
}

// DeviceNum numbers a backend's devices from 0.
type DeviceNum = compute.DeviceNum

// NumDevices returns the number of devices.
func (b *Backend) NumDevices() int { return b.info.Devices }

// physical returns the plugin's number of a device.
func (b *Backend) physical(device compute.DeviceNum) compute.DeviceNum {
	return device % compute.DeviceNum(b.share)
}
