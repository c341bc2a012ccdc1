// Package xla opens XLA with N devices as a GoMLX backend, and runs one program
// on all of them over a mesh with named axes.
//
// On a CPU the devices are as many as asked for, in one process, with real
// collectives between them; on CUDA they are the GPUs. A backend is what GoMLX
// calls a compute.Backend: whatever GoMLX builds runs on it.
package xla

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"unsafe"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/shapes"
	goxla "github.com/gomlx/go-xla/compute/xla"
	"github.com/gomlx/go-xla/pjrt"

	"github.com/shardbook/shardbook/lib/xla/plugin"
)

// Backend is XLA with a number of devices. It implements GoMLX's compute.Backend,
// and counts the buffers that live on each device.
//
// Its methods may be called from several goroutines at once.
type Backend struct {
	compute.Backend // go-xla's: builds graphs, owns the devices
	info            Info
	ledger          *ledger
	plugin          plugin.Plugin
	client          unsafe.Pointer // PJRT_Client*
	donations       donations
	building        sync.RWMutex // held for reading while a program is compiled
}

// Info says what a backend runs on.
type Info struct {
	Devices  int             // number of devices
	Platform plugin.Platform // "cpu" or "cuda"
	Plugin   string          // path of the PJRT plugin
	Source   string          // where the plugin was found
	API      string          // version of the PJRT API that it speaks
	Canaries []Canary        // the computations checked when it was opened, all of them right
}

// ErrTooFew is in the error of Open where more devices are asked for than there are GPUs.
var ErrTooFew = errors.New("too few devices")

// Open opens a backend. It finds the PJRT plugin or installs it, and refuses one
// that computes wrongly: a few small programs are run and compared with plain Go
// before the backend is returned.
//
// Each call makes devices of its own. Close the backend after use.
func Open(options ...Option) (*Backend, error) {
	b, err := OpenContext(context.Background(), options...)
	if err != nil {
		return nil, err
	}
	return b, nil
}

// OpenContext is Open with a context that bounds the installation of a plugin.
func OpenContext(ctx context.Context, options ...Option) (*Backend, error) {
	c, err := newConfig(options)
	if err != nil {
		return nil, err
	}
	found, err := plugin.Ensure(ctx, c.plugin, c.cacheDir, c.progress)
	if err != nil {
		return nil, err
	}
	client, err := c.clientOptions(ctx, &found)
	if err != nil {
		return nil, err
	}
	api, err := plugin.Load(found)
	if err != nil {
		return nil, err
	}
	tameGoXLA()
	found.FindCUDA()
	inner, err := goxla.NewWithOptions(found.Path, client)
	if err != nil {
		return nil, fmt.Errorf("plugin %q does not start: %w", found.Path, err)
	}
	inner.DotGeneralUseTF32 = c.tf32 && found.Platform == plugin.CUDA // go-xla's default is yes
	b := &Backend{Backend: inner, plugin: found, client: clientHandle(inner), ledger: newLedger(inner.NumDevices()),
		info: Info{
			Devices:  inner.NumDevices(),
			Platform: found.Platform,
			Plugin:   found.Path,
			Source:   found.Source,
			API:      api.String(),
		}}
	replaceTable(inner, func(table unsafe.Pointer) unsafe.Pointer { return plugin.CompileThrough(table, b.client) })
	if c.devices != 0 && b.info.Devices != c.devices {
		b.Close()
		return nil, fmt.Errorf("plugin %q gave %d devices, %d were asked for", found.Path, b.info.Devices, c.devices)
	}
	if err := b.check(c); err != nil {
		b.Close()
		return nil, fmt.Errorf("plugin %q is refused (with XLA_FLAGS=%q): %w; unset XLA_FLAGS, or set "+
			"%s to another plugin", found.Path, os.Getenv("XLA_FLAGS"), err, plugin.Env)
	}
	plugin.KeepExecutables(b.client, b.executables(c)) // not before: canaries are compiled each time
	b.ledger = newLedger(b.info.Devices)               // the canaries' buffers are garbage now, not the user's
	return b, nil
}

// tameGoXLA keeps go-xla from downloading plugins behind our back, and from a warning about NVIDIA's libraries, which
// it looks for in another folder than the one that pip puts them in and the plugin finds. Both hold for the whole
// process.
var tameGoXLA = sync.OnceFunc(func() {
	goxla.EnableAutoInstall(false)
	os.Setenv("GOPJRT_CUDA_CHECKS", "0")
})

// clientOptions is what the plugin is told about devices. Without a wish for a
// plugin, a CPU stands in for GPUs that are too few.
func (c *config) clientOptions(ctx context.Context, p *plugin.Plugin) (pjrt.NamedValuesMap, error) {
	if p.Platform == plugin.CPU {
		n := c.devices
		if n == 0 {
			n = DefaultDevices
		}
		return pjrt.NamedValuesMap{"cpu_device_count": int64(n)}, nil
	}
	gpus := plugin.GPUs()
	if c.devices > gpus && c.plugin == "" {
		cpu, err := plugin.Ensure(ctx, string(plugin.CPU), c.cacheDir, c.progress)
		if err != nil {
			return nil, err
		}
		*p = cpu
		return c.clientOptions(ctx, p)
	}
	if c.devices > gpus {
		return nil, fmt.Errorf("%w: %d devices asked for, but this machine has %d GPUs: ask for fewer, or "+
			"for the CPU (%s=cpu)", ErrTooFew, c.devices, gpus, plugin.Env)
	}
	if c.devices == 0 {
		return nil, nil
	}
	visible := make([]int64, c.devices)
	for i := range visible {
		visible[i] = int64(i)
	}
	return pjrt.NamedValuesMap{"visible_devices": visible}, nil
}

// Info says what the backend runs on.
func (b *Backend) Info() Info { return b.info }

// Close frees the devices, once nothing is compiled for them any more. Tensors that still lie on them become invalid.
// It may be called more than once.
func (b *Backend) Close() {
	b.building.Lock()
	defer b.building.Unlock()
	plugin.ForgetClient(b.client)
	b.Backend.Finalize()
	b.ledger.clear()
}

// BufferFromFlatData copies a flat slice to a device.
func (b *Backend) BufferFromFlatData(device compute.DeviceNum, flat any, shape shapes.Shape) (compute.Buffer, error) {
	inner, err := b.Backend.BufferFromFlatData(device, flat, shape)
	if err != nil {
		return nil, err
	}
	return b.own(inner)
}

// NewSharedBuffer makes a buffer whose memory Go and the device share. Only CPU
// devices have them.
func (b *Backend) NewSharedBuffer(device compute.DeviceNum, shape shapes.Shape) (compute.Buffer, any, error) {
	inner, flat, err := b.Backend.NewSharedBuffer(device, shape)
	if err != nil {
		return nil, nil, err
	}
	owned, err := b.own(inner)
	return owned, flat, err
}

// DeviceNum numbers a backend's devices from 0.
type DeviceNum = compute.DeviceNum
