//go:build !resident

package xla

import (
	"fmt"
	"slices"
	"unsafe"

	"github.com/gomlx/go-xla/pjrt"

	"github.com/shardbook/shardbook/internal/plugin"
	"github.com/shardbook/shardbook/lib/resident"
)

// lentArray is an array.
type lentArray struct {
	*pjrt.Buffer
	of *lent
}

// array returns an array by its number.
func (l *lender) array(number uint64) (*lentArray, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.arrays[number]; a != nil {
		return a, nil
	}
	return nil, fmt.Errorf("no array has number %d: it has been freed or donated", number)
}

// add numbers an array, which is freed when the session ends.
func (l *lender) add(s *resident.Session, of *lent, b *pjrt.Buffer) (a resident.Array, err error) {
	var dims []int
	var device *pjrt.Device
	a.Offset = -1
	if a.Type, err = b.DType(); err == nil {
		dims, err = b.Dimensions()
	}
	if err == nil {
		device, err = b.Device()
	}
	if err != nil {
		return a, err
	}
	a.Dims, a.Device = slices.Clone(dims), of.client().NumForDevice(device)
	if of.info.Platform == plugin.CPU {
		if at, err := b.UnsafePointer(); err == nil {
			if offset := uintptr(at) - l.at; offset < resident.MemorySize {
				a.Offset = int64(offset)
			}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	a.ID = l.last
	l.arrays[a.ID] = &lentArray{b, of}
	if s != nil {
		s.Own(a.ID, func() { l.drop(a.ID) })
	}
	return a, nil
}

// drop frees an array.
func (l *lender) drop(number uint64) {
	l.mu.Lock()
	a := l.arrays[number]
	delete(l.arrays, number)
	l.mu.Unlock()
	if a != nil {
		_ = a.Destroy()
	}
}

// makeArray makes an array. Its content is in the request, or will be written by the cell.
func (l *lender) makeArray(s *resident.Session, m resident.Make) (a resident.Array, err error) {
	b, err := l.backend(m.Client)
	if err != nil {
		return a, err
	}
	devices := b.client().AddressableDevices()
	if m.Device < 0 || m.Device >= len(devices) {
		return a, fmt.Errorf("device %d: choose one from 0 to %d", m.Device, len(devices)-1)
	}
	if m.Content == nil && b.info.Platform == plugin.CPU && m.Type.SizeForDimensions(m.Dims...) > 0 {
		device := deviceHandle(devices[m.Device])
		at, err := plugin.MakeArray(b.owner.plugin, b.owner.client, device, int(m.Type), m.Dims)
		if err != nil {
			return a, err
		}
		return l.add(s, b, newPJRTBuffer(b.client(), at))
	}
	content := m.Content
	if content == nil {
		content = make([]byte, m.Type.SizeForDimensions(m.Dims...))
	}
	array, err := b.client().BufferFromHost().FromRawData(content, m.Type, m.Dims).ToDeviceNum(m.Device).Done()
	if err != nil {
		return a, err
	}
	return l.add(s, b, array)
}

// read returns an array's content.
func (l *lender) read(_ *resident.Session, r resident.Read) (c resident.Content, err error) {
	a, err := l.array(r.Array)
	if err != nil {
		return c, err
	}
	size, err := a.Size()
	if err != nil {
		return c, err
	}
	c.Bytes = make([]byte, size)
	return c, a.ToHost(c.Bytes)
}

// copy copies an array to a device, also to its own.
func (l *lender) copy(s *resident.Session, c resident.Copy) (to resident.Array, err error) {
	a, err := l.array(c.Array)
	if err != nil {
		return to, err
	}
	devices := a.of.client().AddressableDevices()
	if c.Device < 0 || c.Device >= len(devices) {
		return to, fmt.Errorf("device %d: choose one from 0 to %d", c.Device, len(devices)-1)
	}
	copied, err := copyArray(a, devices[c.Device])
	if err != nil {
		return to, err
	}
	return l.add(s, a.of, copied)
}

// copyArray copies an array. What PJRT copies between devices is complete only once a program uses it, so it goes by
// the host.
func copyArray(a *lentArray, to *pjrt.Device) (*pjrt.Buffer, error) {
	dtype, err := a.DType()
	if err != nil {
		return nil, err
	}
	dims, err := a.Dimensions()
	if err != nil {
		return nil, err
	}
	size, err := a.Size()
	if err != nil {
		return nil, err
	}
	content := make([]byte, size)
	if size > 0 {
		if err := a.ToHost(content); err != nil {
			return nil, err
		}
	}
	return a.of.client().BufferFromHost().FromRawData(content, dtype, dims).ToDevice(to).Done()
}

// free frees arrays. Programs stay for those who compile them again.
func (l *lender) free(s *resident.Session, f resident.Free) (resident.Done, error) {
	for _, number := range f.Arrays {
		s.Disown(number)
		l.drop(number)
	}
	return resident.Done{OK: true}, nil
}

// keep copies an array to a number that no session owns, or frees such copies.
func (l *lender) keep(_ *resident.Session, k resident.Keep) (to resident.Array, err error) {
	for _, number := range k.Free {
		l.drop(number)
	}
	if k.Array == 0 {
		return to, nil
	}
	a, err := l.array(k.Array)
	if err != nil {
		return to, err
	}
	device, err := a.Device()
	if err != nil {
		return to, err
	}
	copied, err := copyArray(a, device)
	if err != nil {
		return to, err
	}
	return l.add(nil, a.of, copied)
}

// deviceHandle returns a device's handle (PJRT_Device*).
func deviceHandle(d *pjrt.Device) unsafe.Pointer { return *pointerIn(unsafe.Pointer(d), deviceC) }
