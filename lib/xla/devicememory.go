package xla

import (
	"errors"
	"fmt"
)

// DeviceMemory is the memory of a device in bytes, as XLA's allocator counts it: arrays, and the temporary buffers of
// programs.
type DeviceMemory struct {
	Used  int64
	Peak  int64 // the most that was in use at a time since the backend was opened; 0 if unknown
	Limit int64 // the most that the allocator gives out; 0 if unknown
}

// DeviceMemory returns the memory of a device by its number; devices that share a GPU ([Share]) have the same. XLA
// counts it on GPUs. On CPUs it is an error: there [Backend.PeakBytes] counts arrays, and [Program.Memory] has what XLA
// plans besides.
func (b *Backend) DeviceMemory(device int) (DeviceMemory, error) {
	if device < 0 || device >= b.info.Devices {
		return DeviceMemory{}, fmt.Errorf("device %d: choose one from 0 to %d", device, b.info.Devices-1)
	}
	if b.IsFinalized() {
		return DeviceMemory{}, errors.New("the backend is closed: open another")
	}
	return b.deviceMemory(device)
}
