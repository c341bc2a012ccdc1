package residual

import (
	"errors"
	"fmt"

	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/xla"
)

// Region is memory of a device that is reserved once, as one buffer, for tensors that live long, such as activation
// checkpoints and gradients: each has a place of its own there, so that it leaves no hole among those that live short
// (M_D, ZeRO §6.3). Tensors are copied in and out, by programs that write in place.
//
// It is for one goroutine.
type Region struct {
	backend *xla.Backend
	device  int
	slots   []slot
	bytes   int64
	memory  *tensors.Tensor // of one dimension; nil when closed
	put     *xla.Portable
	get     map[string]*xla.Portable // by shape
}

type slot struct {
	shape  shapes.Shape
	offset int // in elements
}

// alignment is where tensors begin, in bytes: what XLA wants of buffers.
const alignment = 64

// NewRegion reserves memory on a device for tensors of these shapes, one behind the other, each at a multiple of 64
// bytes. They must be of one type, which is a number's of at least 8 bits. Close the region after use.
func NewRegion(backend *xla.Backend, device int, of ...shapes.Shape) (*Region, error) {
	if backend == nil || len(of) == 0 {
		return nil, errors.New("residual: a region of no backend, or for nothing: " +
			"give a backend and the shapes of what lies there")
	}
	r := &Region{backend: backend, device: device, get: map[string]*xla.Portable{}}
	total := 0
	for i, shape := range of {
		if !shape.Ok() || shape.Size() == 0 || shape.DType != of[0].DType || !(shape.DType.IsFloat() || shape.DType.IsInt()) {
			return nil, fmt.Errorf("residual: shape %d of a region is %s, the first %s: "+
				"give shapes with elements, of one type of numbers", i, shape, of[0])
		}
		r.slots = append(r.slots, slot{shape, total})
		unit := max(1, alignment/shape.DType.Size())
		total += (shape.Size() + unit - 1) / unit * unit
	}
	all := shapes.Make(of[0].DType, total)
	r.bytes = all.ByteSize()
	var err error
	if r.memory, err = reserve(backend, device, all); err != nil {
		return nil, fmt.Errorf("residual: reserving a region of %d bytes on device %d: %w", r.bytes, device, err)
	}
	r.put, err = xla.CompilePortable(backend, func(region, x, at *graph.Node) *graph.Node {
		return graph.DynamicUpdateSlice(region, graph.Reshape(x, -1), []*graph.Node{at})
	}, 0)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("residual: the program that fills a region: %w", err), r.memory.FinalizeAll())
	}
	return r, nil
}

// reserve returns memory on a device.
func reserve(backend *xla.Backend, device int, shape shapes.Shape) (*tensors.Tensor, error) {
	p, err := xla.CompilePortable(backend, func(g *graph.Graph) *graph.Node { return graph.Zeros(g, shape) })
	if err != nil {
		return nil, err
	}
	defer p.Close()
	out, err := p.Call(device)
	if err != nil {
		return nil, err
	}
	return out[0], nil
}

// slot returns a place, by its number.
func (r *Region) slot(i int) (slot, error) {
	if r.memory == nil {
		return slot{}, errors.New("residual: the region is closed: make another")
	}
	if i < 0 || i >= len(r.slots) {
		return slot{}, fmt.Errorf("residual: place %d of a region of %d: count from 0", i, len(r.slots))
	}
	return r.slots[i], nil
}

// Put copies a tensor, which lies on the region's device or on the host and remains the caller's, into place i, over
// what is there. A place that does not exist and a tensor of another shape are errors.
func (r *Region) Put(i int, x *tensors.Tensor) error {
	s, err := r.slot(i)
	if err != nil {
		return err
	}
	if err := x.CheckValid(); err != nil {
		return fmt.Errorf("residual: place %d of a region: %w", i, err)
	}
	if !x.Shape().Equal(s.shape) {
		return fmt.Errorf("residual: a tensor of shape %s for place %d of a region, which is for %s", x.Shape(), i, s.shape)
	}
	out, err := r.put.Call(r.device, r.memory, x, int64(s.offset))
	if err != nil {
		return fmt.Errorf("residual: filling place %d of a region: %w", i, err)
	}
	r.memory = out[0]
	return nil
}

// Get returns a copy of what lies in place i, zeros if nothing was put there.
func (r *Region) Get(i int) (*tensors.Tensor, error) {
	s, err := r.slot(i)
	if err != nil {
		return nil, err
	}
	get := r.get[s.shape.String()]
	if get == nil {
		get, err = xla.CompilePortable(r.backend, func(region, at *graph.Node) *graph.Node {
			return graph.Reshape(graph.DynamicSlice(region, []*graph.Node{at}, []int{s.shape.Size()}), s.shape.Dimensions...)
		})
		if err != nil {
			return nil, fmt.Errorf("residual: the program that reads place %d of a region: %w", i, err)
		}
		r.get[s.shape.String()] = get
	}
	out, err := get.Call(r.device, r.memory, int64(s.offset))
	if err != nil {
		return nil, fmt.Errorf("residual: reading place %d of a region: %w", i, err)
	}
	return out[0], nil
}

// Bytes returns the region's memory.
func (r *Region) Bytes() int64 { return r.bytes }

// Close gives the region's memory back.
func (r *Region) Close() error {
	if r.memory == nil {
		return nil
	}
	r.put.Close()
	for _, get := range r.get {
		get.Close()
	}
	memory := r.memory
	r.memory = nil
	return memory.FinalizeAll()
}
