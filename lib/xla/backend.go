// Package xla opens XLA with N devices as a GoMLX backend, and runs programs on all of them over a mesh with named
// axes.
//
// On a CPU any number of devices share one process, with real collectives between them; on CUDA the devices are the
// GPUs. A backend implements GoMLX's compute.Backend, so whatever GoMLX builds runs on it.
package xla

import (
	"cmp"
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

	"github.com/shardbook/shardbook/internal/plugin"
)

// Backend is XLA with a number of devices. It implements GoMLX's compute.Backend, and counts the live buffers on each
// device. Its methods may be called from several goroutines at once.
type Backend struct {
	compute.Backend // go-xla's, which builds graphs and owns the devices
	info            Info
	ledger          *ledger
	plugin          plugin.Plugin
	client          unsafe.Pointer // PJRT_Client*
	kernels         bool           // programs may call the kernels of internal/dense
	building        sync.RWMutex   // held for reading while a program is compiled
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

// ErrTooFew is wrapped by the error of Open for more devices than there are GPUs.
var ErrTooFew = errors.New("too few devices")

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
	found, err := plugin.Ensure(ctx, c.plugin, c.cacheDir, report)
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
	if !c.giveBack && found.Platform == plugin.CPU {
		plugin.KeepMemory(found)
	}
	tameGoXLA()
	found.FindCUDA()
	inner, err := goxla.NewWithOptions(found.Path, client)
	if err != nil {
		return nil, fmt.Errorf("plugin %q does not start: %w", found.Path, err)
	}
	inner.DotGeneralUseTF32 = c.tf32 && found.Platform == plugin.CUDA // go-xla's default is true
	n := inner.NumDevices()
	b := &Backend{Backend: inner, plugin: found, client: clientHandle(inner), ledger: newLedger(n),
		kernels: !c.noKernels && found.Platform == plugin.CPU,
		info: Info{Devices: n, Platform: found.Platform, Plugin: found.Path, Source: found.Source,
			API: api.String()}}
	replaceTable(inner, func(table unsafe.Pointer) unsafe.Pointer { return plugin.CompileThrough(table, b.client) })
	if c.devices != 0 && b.info.Devices != c.devices {
		b.Close()
		return nil, fmt.Errorf("plugin %q has %d devices, but %d were asked for: ask for that many", found.Path,
			b.info.Devices, c.devices)
	}
	if err := b.check(c); err != nil {
		b.Close()
		return nil, fmt.Errorf("plugin %q is refused (with XLA_FLAGS=%q): %w; unset XLA_FLAGS, or set "+
			"%s to another plugin", found.Path, os.Getenv("XLA_FLAGS"), err, plugin.Env)
	}
	plugin.KeepExecutables(b.client, b.executables(c)) // only now, so that canaries are compiled each time
	b.ledger = newLedger(b.info.Devices)               // without the canaries' buffers
	return b, nil
}

// tameGoXLA turns off go-xla's downloads of plugins, and its warning about NVIDIA's libraries, which it does not look
// for where pip installs them and the plugin finds them. Both affect the process.
var tameGoXLA = sync.OnceFunc(func() {
	goxla.EnableAutoInstall(false)
	os.Setenv("GOPJRT_CUDA_CHECKS", "0")
})

// clientOptions returns the plugin's device options. If there are too few GPUs and no plugin was chosen, it chooses the
// CPU.
func (c *config) clientOptions(ctx context.Context, p *plugin.Plugin) (pjrt.NamedValuesMap, error) {
	if p.Platform == plugin.CPU {
		return pjrt.NamedValuesMap{"cpu_device_count": int64(cmp.Or(c.devices, DefaultDevices))}, nil
	}
	gpus := plugin.GPUs()
	if c.devices > gpus && c.plugin == "" {
		cpu, err := plugin.Ensure(ctx, string(plugin.CPU), c.cacheDir, report)
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

// Info returns the backend's devices and plugin.
func (b *Backend) Info() Info { return b.info }

// Close waits until nothing is being compiled and frees the devices. Tensors on them become invalid. It may be called
// more than once.
func (b *Backend) Close() {
	b.building.Lock()
	defer b.building.Unlock()
	plugin.ForgetClient(b.client)
	b.Backend.Finalize()
	b.ledger.clear()
}

// BufferFromFlatData copies a flat slice to a device.
func (b *Backend) BufferFromFlatData(device compute.DeviceNum, flat any, shape shapes.Shape) (compute.Buffer, error) {
	return b.own(b.Backend.BufferFromFlatData(device, flat, shape))
}

// NewSharedBuffer makes a buffer whose memory Go and the device share. Only CPU devices support it.
func (b *Backend) NewSharedBuffer(device compute.DeviceNum, shape shapes.Shape) (compute.Buffer, any, error) {
	inner, flat, err := b.Backend.NewSharedBuffer(device, shape)
	owned, err := b.own(inner, err)
	return owned, flat, err
}

// DeviceNum numbers a backend's devices from 0.
type DeviceNum = compute.DeviceNum
