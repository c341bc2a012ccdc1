//go:build !resident

package xla

import (
	"fmt"
	"time"
	"unsafe"

	"github.com/shardbook/shardbook/internal/plugin"
	"github.com/shardbook/shardbook/lib/xplane"
)

// owner has the devices of a backend: the plugin's client in this process.
type owner struct {
	plugin plugin.Plugin
	client unsafe.Pointer // PJRT_Client*
	driver plugin.Driver  // and the GPUs that are devices; zero on CPUs
}

// forget is called when the backend is closed.
func (o owner) forget() { plugin.ForgetClient(o.client) }

// register makes a kernel callable.
func (o owner) register(k *Kernel) error {
	handler, err := k.handler()
	if err != nil {
		return err
	}
	return plugin.RegisterKernel(o.plugin, k.name, handler)
}

// record runs f while XLA's profiler records.
func (o owner) record(f func() error) (*xplane.Profile, error) {
	space, err := plugin.Record(o.plugin, f)
	if err != nil {
		return nil, err
	}
	p, err := xplane.Read(space)
	if err != nil {
		return nil, fmt.Errorf("reading the profile of plugin %q: %w", o.plugin.Path, err)
	}
	return p, nil
}

// ErrNoProfiler is wrapped by the error of Profile if the plugin has no profiler, like XLA's for CPUs.
var ErrNoProfiler = plugin.ErrNoProfiler

// ProcessorTime returns the time that processors have worked for this program and its devices so far, in all threads.
func ProcessorTime() time.Duration { return ownTime() }

// FreeMemory returns the memory of buffers that are free to the operating system, as debug.FreeOSMemory does for Go's.
func FreeMemory() { plugin.FreeMemory() }

// KeptMemory returns the bytes of the large buffers of XLA on CPUs that are in use, and of the free ones that the
// process keeps.
func KeptMemory() (used, unused int) { return plugin.Memory() }
