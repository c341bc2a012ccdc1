//go:build !resident

package xla

import (
	"reflect"
	"unsafe"

	"github.com/gomlx/compute"
	goxla "github.com/gomlx/go-xla/compute/xla"
	"github.com/gomlx/go-xla/pjrt"

	"github.com/shardbook/shardbook/internal/plugin"
)

// The plugin's handles inside go-xla's types: as upstream.go, for what is only in the process that has the devices.

var (
	loadedInfo  = kindOf[pjrt.LoadedExecutable]("executable", reflect.Pointer)
	infoWrapper = kindOf[pjrt.Executable]("wrapper", reflect.Pointer)
	wrapperC    = pointerField(infoWrapper.Type.Elem(), "c")

	backendClient = field[goxla.Backend, *pjrt.Client]("client")
	backendPlugin = field[goxla.Backend, *pjrt.Plugin]("plugin")
	clientPlugin  = field[pjrt.Client, *pjrt.Plugin]("plugin")
	clientWrapper = kindOf[pjrt.Client]("client", reflect.Pointer)
	clientC       = pointerField(clientWrapper.Type.Elem(), "c")
	deviceC       = kindOf[pjrt.Device]("cDevice", reflect.Pointer)
	bufferWrapper = kindOf[pjrt.Buffer]("wrapper", reflect.Pointer)
	bufferC       = pointerField(bufferWrapper.Type.Elem(), "c")
	bufferPlugin  = pointerField(bufferWrapper.Type.Elem(), "plugin")
	bufferClient  = pointerField(bufferWrapper.Type.Elem(), "client")
	pluginName    = field[pjrt.Plugin, string]("name")
	pluginAPI     = kindOf[pjrt.Plugin]("api", reflect.Pointer)
)

// pointerIn returns the pointer in a field of a struct.
func pointerIn(owner unsafe.Pointer, f reflect.StructField) *unsafe.Pointer {
	return (*unsafe.Pointer)(unsafe.Add(owner, f.Offset))
}

// clientHandle returns the C pointer (PJRT_Client*) of go-xla's backend. It is valid until the backend is closed.
func clientHandle(b *goxla.Backend) unsafe.Pointer {
	return *pointerIn(*pointerIn(unsafe.Pointer(*backendClient.of(b)), clientWrapper), clientC)
}

// replaceTable has go-xla call another table of the plugin's functions (PJRT_Api*) for this backend alone, and take the
// plugin for one of that name.
func replaceTable(b *goxla.Backend, name string, by func(table unsafe.Pointer) (unsafe.Pointer, error)) error {
	its := clientPlugin.of(*backendClient.of(b))
	own := **its
	table := pointerIn(unsafe.Pointer(&own), pluginAPI)
	other, err := by(*table)
	if err != nil {
		return err
	}
	*table, *pluginName.of(&own) = other, name
	*its, *backendPlugin.of(b) = &own, &own
	return nil
}

// deviceMemory is [Backend.DeviceMemory].
func (b *Backend) deviceMemory(device int) (m DeviceMemory, err error) {
	client := *backendClient.of(b.Backend.(*goxla.Backend))
	table := *pointerIn(unsafe.Pointer(*clientPlugin.of(client)), pluginAPI)
	on := client.AddressableDevices()[b.physical(compute.DeviceNum(device))]
	m.Used, m.Peak, m.Limit, err = plugin.DeviceMemory(table, deviceHandle(on))
	return m, err
}

// executableHandle returns the C pointer (PJRT_Executable*) of a compiled program.
// It is valid while e is.
func executableHandle(e compute.Executable) unsafe.Pointer {
	info := *pointerIn(unsafe.Pointer(loadedExecutable(e)), loadedInfo)
	return *pointerIn(*pointerIn(info, infoWrapper), wrapperC)
}

func pointerField(owner reflect.Type, name string) reflect.StructField {
	return fieldOf(owner, name, func(t reflect.Type) bool { return t.Kind() == reflect.Pointer })
}

// newPJRTBuffer makes go-xla's buffer of a handle (PJRT_Buffer*), which the caller must destroy.
func newPJRTBuffer(client *pjrt.Client, handle unsafe.Pointer) *pjrt.Buffer {
	wrapper := reflect.New(bufferWrapper.Type.Elem()).UnsafePointer()
	*pointerIn(wrapper, bufferC) = handle
	*pointerIn(wrapper, bufferClient) = unsafe.Pointer(client)
	*pointerIn(wrapper, bufferPlugin) = unsafe.Pointer(*clientPlugin.of(client))
	b := new(pjrt.Buffer)
	*pointerIn(unsafe.Pointer(b), bufferWrapper) = wrapper
	return b
}
