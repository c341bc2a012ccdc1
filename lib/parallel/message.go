package parallel

import (
	"unsafe"

	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/collective/group"
)

// message is what one stage gives another, whole and on the host: so it does not matter how many devices either has, or which
// parts of it.
type message struct {
	shape shapes.Shape
	data  []byte
}

func newMessage(shape shapes.Shape) *message {
	return &message{shape, make([]byte, shape.ByteSize())}
}

// messageOf copies a placed tensor.
func messageOf(on *dtensor.Tensor) (*message, error) {
	whole, err := merged(on)
	if err != nil {
		return nil, err
	}
	m := newMessage(whole.Shape())
	return m, whole.ConstBytes(func(data []byte) { copy(m.data, data) })
}

// tensor is its content.
func (m *message) tensor() (*tensors.Tensor, error) {
	t := tensors.FromShape(m.shape)
	return t, t.MutableBytes(func(data []byte) { copy(data, m.data) })
}

// Memory implements pipeline.Message.
func (m *message) Memory() (group.Type, group.Buffer, error) {
	return group.Uint8, group.Buffer{Data: unsafe.Pointer(unsafe.SliceData(m.data)), Len: len(m.data)}, nil
}

// Free implements pipeline.Message: it is the garbage collector's.
func (m *message) Free() error { return nil }
