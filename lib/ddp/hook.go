package ddp

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"unsafe"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/dtypes/bfloat16"
	"github.com/gomlx/compute/dtypes/float16"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/collective/plan"
	"github.com/shardbook/shardbook/lib/xla"
)

// Hook communicates a bucket in place of an all-reduce: what PyTorch calls a communication hook. A rank has one of its
// own, which may keep what it likes from step to step.
type Hook interface {
	// Reduce replaces the rank's gradients by the sum of all ranks', or what is near to it; all ranks must get the same
	// bits. All ranks call it with the same buckets in the same order, one at a time, and it makes what calls on the
	// group it likes.
	Reduce(ctx context.Context, g group.Group, grads Gradients) error
}

// Gradients are a rank's gradients of a bucket, in the device's memory.
type Gradients struct {
	Bucket
	Index int // of the bucket, counted from 0
	Type  group.Type
	Data  group.Buffer
}

// Float32 returns the gradients as a slice: no copy. It is an error if they have another type.
func (g Gradients) Float32() ([]float32, error) {
	if g.Type != group.Float32 {
		return nil, fmt.Errorf("ddp: gradients are summed in %v, and the hook takes float32 alone: set Recipe.Precision.Reduce", g.Type)
	}
	return unsafe.Slice((*float32)(g.Data.Data), g.Data.Len), nil
}

// call is the all-reduce of the gradients.
func (g Gradients) call(op group.Op) group.Call {
	return group.Call{Kind: group.KindAllReduce, Type: g.Type, Op: op, In: g.Data, Out: g.Data}
}

// ByPlan is a hook that all-reduces message by message, by an algorithm of package plan: slower than the group's own
// way, but every message can be seen and counted (group.Count). It takes float32 gradients.
func ByPlan(algorithm plan.Algorithm) func() Hook {
	return func() Hook { return &planned{algorithm: algorithm} }
}

type planned struct {
	algorithm plan.Algorithm
	plan      *plan.Plan
}

func (p *planned) Reduce(ctx context.Context, g group.Group, grads Gradients) error {
	if p.plan == nil {
		var err error
		if p.plan, err = plan.New(plan.AllReduce, p.algorithm, g.Size()); err != nil {
			return err
		}
	}
	values, err := grads.Float32()
	if err != nil {
		return err
	}
	return group.RunPlan(ctx, g, p.plan, values, group.Sum)
}

// buffer returns a tensor's memory, on a CPU device, as a group takes it.
func buffer(t *tensors.Tensor) (group.Type, group.Buffer, error) {
	switch t.DType() {
	case dtypes.Float32:
		return memory[float32](t, group.Float32)
	case dtypes.Float64:
		return memory[float64](t, group.Float64)
	case dtypes.BFloat16:
		return memory[bfloat16.BFloat16](t, group.BFloat16)
	case dtypes.Float16:
		return memory[float16.Float16](t, group.Float16)
	case dtypes.Int32:
		return memory[int32](t, group.Int32)
	case dtypes.Uint8:
		return memory[uint8](t, group.Uint8)
	}
	return 0, group.Buffer{}, fmt.Errorf("ddp: a tensor of %v: ranks share float32, float64, bfloat16, float16, int32 and uint8", t.DType())
}

func memory[T float32 | float64 | bfloat16.BFloat16 | float16.Float16 | int32 | uint8](t *tensors.Tensor, as group.Type) (group.Type, group.Buffer, error) {
	values, err := xla.View[T](t)
	return as, group.Buffer{Data: unsafe.Pointer(unsafe.SliceData(values)), Len: len(values)}, err
}

// stream does one thing after another in the background, as a device's communication stream does. The methods but
// finish may be called by one goroutine only.
type stream struct {
	queue chan task
	end   sync.WaitGroup
	err   error // the first; what follows it is not done
}

type task struct {
	do   func() error
	done chan struct{}
}

// newStream starts a stream of at most so many tasks.
func newStream(tasks int) *stream {
	s := &stream{queue: make(chan task, tasks)}
	s.end.Go(func() {
		for t := range s.queue {
			if s.err == nil {
				s.err = caught(t.do)
			}
			close(t.done)
		}
	})
	return s
}

// caught makes an error of a panic, such as a hook's: the rank fails by it, not the program.
func caught(do func() error) (err error) {
	defer func() {
		if thrown := recover(); thrown != nil {
			err = fmt.Errorf("panic: %v\n%s", thrown, debug.Stack())
		}
	}()
	return do()
}

// add puts a task behind those before it, and returns what is closed when it is done.
func (s *stream) add(do func() error) (done <-chan struct{}) {
	t := task{do, make(chan struct{})}
	s.queue <- t
	return t.done
}

// finish waits for all tasks, and returns the first error.
func (s *stream) finish() error {
	close(s.queue)
	s.end.Wait()
	return s.err
}
