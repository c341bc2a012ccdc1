// Package pjrt stands in for go-xla's package of the same name in notebook cells. It has what go-xla's backend uses of
// that, but loads no plugin and needs no cgo: the devices are in another process, to which it sends requests.
package pjrt

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/shardbook/shardbook/lib/resident"
)

// NamedValuesMap are options of a client.
type NamedValuesMap map[string]any

// Plugin is the plugin in the process that has the devices.
type Plugin struct {
	name   string
	client *Client
}

// opened are the plugins of clients that are open, by name.
var opened sync.Map

// Opened makes devices that a process has opened known to GetPlugin, and returns the name to give to it.
func Opened(conn *resident.Conn, o resident.Opened) (name string) {
	// go-xla looks for a plugin by itself unless the name is a path, and tells CUDA by the name.
	name = fmt.Sprintf("/%p/%d/%s", conn, o.Client, o.Platform)
	p := &Plugin{name: name}
	p.client = &Client{plugin: p, conn: conn, id: o.Client}
	for i, text := range o.Devices {
		p.client.devices = append(p.client.devices, &Device{number: i, description: text})
	}
	opened.Store(name, p)
	return name
}

// GetPlugin returns a plugin that Opened has named.
func GetPlugin(name string) (*Plugin, error) {
	p, ok := opened.Load(name)
	if !ok {
		return nil, fmt.Errorf("no devices were opened as %q: open them with xla.Open", name)
	}
	return p.(*Plugin), nil
}

// AvailablePlugins lists none: devices are opened with xla.Open.
func AvailablePlugins() map[string]string { return nil }

// IsCUDAName reports whether a plugin is one for CUDA.
func IsCUDAName(name string) bool { return strings.HasSuffix(name, "/cuda") }

// IsCUDA reports whether the devices are GPUs.
func (p *Plugin) IsCUDA() bool { return IsCUDAName(p.name) }

// IsCPU reports whether the devices are the CPU's.
func (p *Plugin) IsCPU() bool { return strings.HasSuffix(p.name, "/cpu") }

// String returns the plugin's name.
func (p *Plugin) String() string { return p.name }

// NewClient returns the client that is open.
func (p *Plugin) NewClient(NamedValuesMap) (*Client, error) { return p.client, nil }

// Client is devices in another process.
type Client struct {
	plugin  *Plugin
	conn    *resident.Conn
	id      uint64
	devices []*Device
}

// Destroy forgets the client. The process keeps its devices open.
func (c *Client) Destroy() error {
	opened.Delete(c.plugin.name)
	return nil
}

// AddressableDevices returns the devices.
func (c *Client) AddressableDevices() []*Device { return c.devices }

// NumForDevice returns a device's number.
func (c *Client) NumForDevice(d *Device) int { return d.number }

// Device is a device.
type Device struct {
	number      int
	description string
}

// GetDescription returns the device's description.
func (d *Device) GetDescription() (*DeviceDescription, error) {
	return &DeviceDescription{d.description}, nil
}

// DeviceDescription is the description of a device.
type DeviceDescription struct{ text string }

// DebugString returns it as text.
func (d *DeviceDescription) DebugString() string { return d.text }

// ProcessIndex returns 0: there is one process.
func (d *DeviceDescription) ProcessIndex() int { return 0 }

var errDestroyed = errors.New("it has been destroyed, or its client has")
