//go:build !resident

package xla

import (
	"cmp"
	"context"
	"fmt"
	"unsafe"

	goxla "github.com/gomlx/go-xla/compute/xla"
	"github.com/gomlx/go-xla/pjrt"

	"github.com/shardbook/shardbook/internal/plugin"
)

// openFor opens a backend for [CompileFor]: the devices, and so all arrays, are those of XLA for CPUs, and the compiler
// is that of the CUDA plugin.
func (c config) openFor(ctx context.Context) (*Backend, error) {
	gpu, err := plugin.FindModel(c.gpu)
	if err != nil {
		return nil, err
	}
	compiler, err := plugin.Ensure(ctx, cmp.Or(c.plugin, string(plugin.CUDA)), c.cacheDir, report)
	if err != nil {
		return nil, err
	}
	if compiler.Platform != plugin.CUDA {
		return nil, fmt.Errorf("plugin %q does not compile for a %s: leave the plugin out, or give one for CUDA",
			compiler.Path, gpu.Name)
	}
	devices, err := plugin.Ensure(ctx, string(plugin.CPU), c.cacheDir, report)
	if err != nil {
		return nil, err
	}
	if _, err := plugin.Load(devices); err != nil {
		return nil, err
	}
	tameGoXLA()
	n := cmp.Or(c.devices, DefaultDevices)
	// As with GPUs, the host cannot read what is on a device.
	inner, err := goxla.NewWithOptions(devices.Path+",shared_buffers=false",
		pjrt.NamedValuesMap{"cpu_device_count": int64(n)})
	if err != nil {
		return nil, fmt.Errorf("plugin %q does not start: %w", devices.Path, err)
	}
	b := &Backend{Backend: inner, target: true, capability: gpu.Capability, share: n, ledger: newLedger(n),
		cudaKernels: c.cudaKernels,
		owner:       owner{plugin: compiler, client: clientHandle(inner)},
		info:        Info{Devices: n, Platform: plugin.CUDA, Plugin: compiler.Path, Source: compiler.Source}}
	inner.DotGeneralUseTF32 = c.tf32
	compiler.FindCUDA()
	api, err := plugin.Load(compiler)
	if err == nil {
		b.info.API = api.String()
		err = replaceTable(inner, compiler.Path, func(table unsafe.Pointer) (unsafe.Pointer, error) {
			table, err := plugin.CompileFor(table, b.owner.client, compiler, gpu, n)
			if err != nil {
				return nil, err
			}
			return plugin.CompileThrough(table, b.owner.client, c.flags(plugin.CUDA)), nil
		})
	}
	if err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}
