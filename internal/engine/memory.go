package engine

import (
	"errors"
	"unsafe"

	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	ranksof "github.com/shardbook/shardbook/internal/rank"
	"github.com/shardbook/shardbook/lib/collective/group"
)

// memory is an array's memory as a group takes it: the device's own, or a copy on the host where that is not one piece of
// memory which the host reaches.
type memory struct {
	kind   group.Type
	buffer group.Buffer
	staged *tensors.Tensor // the copy; nil for the device's own
	on     *dtensor.Tensor // which must live as long
}

// memoryOf returns an array's memory, with what is in it. Values that the group does not share go as bytes where only copies
// are made.
func (r *Rank) memoryOf(on *dtensor.Tensor) (*memory, error) {
	m := &memory{on: on}
	if r.reachable() {
		var err error
		m.kind, m.buffer, err = ranksof.Memory(on.Shards()[0])
		return m, err
	}
	host, err := merged(on)
	if err != nil {
		return nil, err
	}
	return m, m.stage(host)
}

// reachable says whether what lies on the rank's devices is one piece of memory that the host reaches.
func (r *Rank) reachable() bool {
	return r.mesh.NumDevices() == 1 && !r.Staged && r.backend.HasSharedBuffers()
}

func (m *memory) stage(host *tensors.Tensor) error {
	kind, err := ranksof.TypeOf(host)
	if err != nil {
		return err
	}
	m.kind, m.staged = kind, host
	return host.MutableBytes(func(data []byte) {
		m.buffer = group.Buffer{Data: unsafe.Pointer(unsafe.SliceData(data)), Len: host.Size()}
	})
}

// swapped copies blocks of so many elements, which lie as rows of so many columns, so that they lie as columns of rows.
func swapped(from *tensors.Tensor, rows, columns int) (*tensors.Tensor, error) {
	to := tensors.FromShape(from.Shape())
	n := from.Size() / (rows * columns) * from.DType().Size()
	var own error
	err := from.ConstBytes(func(src []byte) {
		own = to.MutableBytes(func(dst []byte) {
			for i := range rows {
				for j := range columns {
					copy(dst[(j*rows+i)*n:][:n], src[(i*columns+j)*n:])
				}
			}
		})
	})
	return to, errors.Join(err, own)
}
