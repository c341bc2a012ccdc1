package pjrt

import (
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/gomlx/compute/dtypes"

	"github.com/shardbook/shardbook/lib/resident"
)

// Buffer is an array on a device.
type Buffer struct {
	client  *Client
	array   resident.Array
	gone    atomic.Bool // destroyed, or donated
	cleanup runtime.Cleanup
}

var alive atomic.Int64

// BuffersAlive returns the number of buffers that have not been destroyed.
func BuffersAlive() int64 { return alive.Load() }

// garbage is what is left of a buffer or a program that nothing refers to.
type garbage struct {
	conn *resident.Conn
	id   uint64
}

// NewBuffer returns an array that the client's process has. The process frees it when the buffer is destroyed.
func NewBuffer(c *Client, array resident.Array) *Buffer {
	b := &Buffer{client: c, array: array}
	alive.Add(1)
	b.cleanup = runtime.AddCleanup(b, func(g garbage) {
		alive.Add(-1)
		g.conn.Tell(resident.Free{Arrays: []uint64{g.id}})
	}, garbage{c.conn, array.ID})
	return b
}

// forget is for a buffer that the process no longer has.
func (b *Buffer) forget() bool {
	if b.gone.Swap(true) {
		return false
	}
	b.cleanup.Stop()
	alive.Add(-1)
	return true
}

// Destroy frees the array.
func (b *Buffer) Destroy() error {
	if b != nil && b.forget() {
		b.client.conn.Tell(resident.Free{Arrays: []uint64{b.array.ID}})
	}
	return nil
}

// Check returns an error if the buffer has been destroyed.
func (b *Buffer) Check() error {
	if b == nil || b.gone.Load() {
		return fmt.Errorf("the buffer cannot be used: %w", errDestroyed)
	}
	return nil
}

// Array returns the array as its process knows it.
func (b *Buffer) Array() resident.Array { return b.array }

// Client returns the buffer's client.
func (b *Buffer) Client() *Client { return b.client }

// DType returns the elements' type.
func (b *Buffer) DType() (dtypes.DType, error) { return b.array.Type, b.Check() }

// Dimensions returns the array's dimensions.
func (b *Buffer) Dimensions() ([]int, error) { return b.array.Dims, b.Check() }

// Device returns the device that the array is on.
func (b *Buffer) Device() (*Device, error) {
	if err := b.Check(); err != nil {
		return nil, err
	}
	return b.client.devices[b.array.Device], nil
}

// UnsafePointer returns the array's address in this process.
func (b *Buffer) UnsafePointer() (unsafe.Pointer, error) {
	if err := b.Check(); err != nil {
		return nil, err
	}
	if b.array.Offset < 0 {
		return nil, errors.New("the device's memory cannot be shared with a cell: copy the array to the host")
	}
	return b.client.conn.Memory.At(b.array.Offset), nil
}

// size returns the number of elements.
func (b *Buffer) size() int {
	n := 1
	for _, d := range b.array.Dims {
		n *= d
	}
	return n
}

// Data returns the array's memory as a slice.
func (b *Buffer) Data() (flat any, err error) {
	if b.size() == 0 {
		return reflect.MakeSlice(reflect.SliceOf(b.array.Type.GoType()), 0, 0).Interface(), b.Check()
	}
	at, err := b.UnsafePointer()
	if err != nil {
		return nil, err
	}
	return reflect.SliceAt(b.array.Type.GoType(), at, b.size()).Interface(), nil
}

// ToHost copies the content.
func (b *Buffer) ToHost(to []byte) error {
	if err := b.Check(); err != nil {
		return err
	}
	defer runtime.KeepAlive(b)
	if b.array.Offset >= 0 {
		copy(to, unsafe.Slice((*byte)(b.client.conn.Memory.At(b.array.Offset)), len(to)))
		return nil
	}
	got, err := resident.Call[resident.Content](b.client.conn, resident.Read{Array: b.array.ID})
	copy(to, got.Bytes)
	return err
}

// CopyToDevice copies the array to a device.
func (b *Buffer) CopyToDevice(to *Device) (*Buffer, error) {
	if err := b.Check(); err != nil {
		return nil, err
	}
	defer runtime.KeepAlive(b)
	array, err := resident.Call[resident.Array](b.client.conn, resident.Copy{Array: b.array.ID, Device: to.number})
	if err != nil {
		return nil, err
	}
	return NewBuffer(b.client, array), nil
}

// NewSharedBuffer makes an array, and returns its memory.
func (c *Client) NewSharedBuffer(dtype dtypes.DType, dims []int, on ...*Device) (*Buffer, any, error) {
	device := 0
	if len(on) > 0 {
		device = on[0].number
	}
	b, err := c.make(dtype, dims, device, nil)
	if err != nil {
		return nil, nil, err
	}
	flat, err := b.Data()
	return b, flat, err
}

// make makes an array with a content.
func (c *Client) make(dtype dtypes.DType, dims []int, device int, content []byte) (*Buffer, error) {
	request := resident.Make{Client: c.id, Type: dtype, Dims: slices.Clone(dims), Device: device}
	if c.conn.Memory == nil || !c.plugin.IsCPU() {
		request.Content = content
	}
	array, err := resident.Call[resident.Array](c.conn, request)
	if err != nil {
		return nil, err
	}
	b := NewBuffer(c, array)
	if array.Offset >= 0 {
		copy(unsafe.Slice((*byte)(c.conn.Memory.At(array.Offset)), len(content)), content)
	} else if request.Content == nil && len(content) > 0 { // it is not in the shared memory after all
		request.Content = content
		if array, err = resident.Call[resident.Array](c.conn, request); err != nil {
			return nil, err
		}
		return NewBuffer(c, array), b.Destroy()
	}
	return b, nil
}

// BufferFromHostConfig describes an array to make.
type BufferFromHostConfig struct {
	client *Client
	data   []byte
	dtype  dtypes.DType
	dims   []int
	device int
}

// BufferFromHost begins an array.
func (c *Client) BufferFromHost() *BufferFromHostConfig { return &BufferFromHostConfig{client: c} }

// FromRawData sets the content.
func (b *BufferFromHostConfig) FromRawData(data []byte, t dtypes.DType, dims []int) *BufferFromHostConfig {
	b.data, b.dtype, b.dims = data, t, dims
	return b
}

// ToDeviceNum sets the device.
func (b *BufferFromHostConfig) ToDeviceNum(device int) *BufferFromHostConfig {
	b.device = device
	return b
}

// Done makes the array.
func (b *BufferFromHostConfig) Done() (*Buffer, error) {
	if b.device < 0 || b.device >= len(b.client.devices) {
		return nil, fmt.Errorf("device %d: choose one from 0 to %d", b.device, len(b.client.devices)-1)
	}
	return b.client.make(b.dtype, b.dims, b.device, b.data)
}
