//go:build !resident

package xla

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"unsafe"

	goxla "github.com/gomlx/go-xla/compute/xla"
	"github.com/gomlx/go-xla/pjrt"

	"github.com/shardbook/shardbook/internal/cache"
	"github.com/shardbook/shardbook/internal/plugin"
)

// open opens the devices in this process.
func (c config) open(ctx context.Context) (*Backend, error) {
	var err error
	if c.cacheDir, err = cache.Dir(c.cacheDir); err != nil {
		return nil, err
	}
	if c.gpu != "" {
		return c.openFor(ctx)
	}
	found, err := plugin.Ensure(ctx, c.plugin, c.cacheDir, report)
	if err != nil {
		return nil, err
	}
	client, driver, err := c.clientOptions(ctx, &found)
	if err != nil {
		return nil, err
	}
	api, err := plugin.Load(found)
	if err != nil {
		return nil, err
	}
	if (!c.giveBack || lending.Load()) && found.Platform == plugin.CPU {
		plugin.KeepMemory(found)
	}
	tameGoXLA()
	found.FindCUDA()
	inner, err := goxla.NewWithOptions(found.Path, client)
	if err = explain(err); errors.Is(err, ErrOutOfMemory) {
		return nil, err
	} else if err != nil {
		return nil, fmt.Errorf("plugin %q does not start: %w", found.Path, err)
	}
	inner.DotGeneralUseTF32 = c.tf32 && found.Platform == plugin.CUDA // go-xla's default is true
	n, share := c.devices, inner.NumDevices()
	if c.share == 0 || n == 0 {
		n = share
	}
	own := owner{plugin: found, client: clientHandle(inner), driver: driver}
	b := &Backend{Backend: inner, owner: own, ledger: newLedger(n), share: share,
		kernels:     !c.noKernels && found.Platform == plugin.CPU,
		cudaKernels: c.cudaKernels && found.Platform == plugin.CUDA, capability: driver.Capability(),
		info: Info{Devices: n, Platform: found.Platform, Plugin: found.Path, Source: found.Source,
			API: api.String()}}
	err = replaceTable(inner, found.Path, func(table unsafe.Pointer) (unsafe.Pointer, error) {
		return plugin.CompileThrough(table, own.client, c.flags(found.Platform)), nil
	})
	if err != nil {
		return nil, err
	}
	if want := cmp.Or(c.share, c.devices); want != 0 && want != share {
		b.Close()
		return nil, fmt.Errorf("plugin %q has %d devices, but %d were asked for: ask for that many", found.Path, share, want)
	}
	if err := b.check(c); errors.Is(err, ErrOutOfMemory) {
		b.Close()
		return nil, err
	} else if err != nil {
		b.Close()
		return nil, fmt.Errorf("plugin %q is refused (with XLA_FLAGS=%q): %w; unset XLA_FLAGS, or set "+
			"%s to another plugin", found.Path, os.Getenv("XLA_FLAGS"), err, plugin.Env)
	}
	plugin.KeepExecutables(own.client, b.executables(c)) // only now, so that canaries are compiled each time
	b.ledger = newLedger(b.info.Devices)                 // without the canaries' buffers
	return b, nil
}

// tameGoXLA turns off go-xla's downloads of plugins, and its warning about NVIDIA's libraries, which it does not look
// for where pip installs them and the plugin finds them. Both affect the process.
var tameGoXLA = sync.OnceFunc(func() {
	goxla.EnableAutoInstall(false)
	os.Setenv("GOPJRT_CUDA_CHECKS", "0")
})

// clientOptions returns the plugin's device options, and the driver with the GPUs that will be devices. If there are
// too few GPUs and no plugin was chosen, it chooses the CPU.
func (c *config) clientOptions(ctx context.Context, p *plugin.Plugin) (of pjrt.NamedValuesMap, driver plugin.Driver,
	err error) {
	n := cmp.Or(c.share, c.devices) // of the plugin's devices; 0: all
	if p.Platform == plugin.CPU {
		return pjrt.NamedValuesMap{"cpu_device_count": int64(cmp.Or(n, DefaultDevices))}, driver, nil
	}
	if n > plugin.GPUs() && c.plugin == "" {
		if *p, err = plugin.Ensure(ctx, string(plugin.CPU), c.cacheDir, report); err != nil {
			return nil, driver, err
		}
		return c.clientOptions(ctx, p)
	}
	if driver, err = p.Driver(); err != nil {
		return nil, driver, err
	}
	gpus := len(driver.GPUs)
	if n > gpus {
		return nil, driver, fmt.Errorf("%w: %d devices asked for, but this machine has %d GPUs: ask for fewer, have ranks "+
			"share them (xla.Share), or ask for the CPU (%s=cpu)", ErrTooFew, n, gpus, plugin.Env)
	}
	driver.GPUs = driver.GPUs[:cmp.Or(n, gpus)]
	visible := make([]int64, len(driver.GPUs))
	for i := range visible {
		visible[i] = int64(i)
	}
	return pjrt.NamedValuesMap{"visible_devices": visible, "memory_fraction": float32(gpuShare),
		"preallocate": false}, driver, nil
}

// gpuShare is the most of a GPU's memory that XLA takes for arrays. It takes memory as it needs it (go-xla sets
// preallocate to false), so that several processes can share a GPU, and keeps it until the backend is closed. The rest
// is for what XLA does not allocate itself: CUDA's context, code, and NVIDIA's libraries.
const gpuShare = 0.9

// flags are the flags of XLA's with which the backend's programs are compiled, besides those of the process.
func (c config) flags(on plugin.Platform) map[string]string {
	if c.noCUDAGraphs && on == plugin.CUDA {
		return map[string]string{"xla_gpu_enable_command_buffer": ""} // of all kinds of commands, none
	}
	return nil
}

// report prints the progress of the installation of a plugin.
func report(_, _ int, what string) { fmt.Fprintln(os.Stderr, "shardbook:", what) }

// executableBytes limits the size of compiled programs in the cache folder.
const executableBytes = 2 << 30

// executables returns the cache of compiled programs, or nil if they are not cached: only XLA's machine code for CPUs
// is known to load, and XLA writes what --xla_dump_to asks for only when it compiles.
func (b *Backend) executables(c config) *plugin.Executables {
	if c.afresh || b.info.Platform != plugin.CPU || strings.Contains(os.Getenv("XLA_FLAGS"), "--xla_dump") {
		return nil
	}
	// The code depends on the number of threads.
	threads := fmt.Sprint(runtime.NumCPU(), os.Getenv("NPROC"), os.Getenv("PJRT_NPROC"))
	return &plugin.Executables{
		Folder: filepath.Join(c.cacheDir, "executables"),
		Limit:  executableBytes,
		Key:    strings.Join([]string{"1", b.codeKey(), threads}, " "),
	}
}
