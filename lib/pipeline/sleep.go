package pipeline

import (
	"context"
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/pipeline/schedule"
)

// Sleeper is a [Worker] that sleeps in place of computing. Stages that sleep overlap on any number of cores, so a schedule's time
// line is as it would be with a device for each rank; what a step takes beyond the simulated one is the cost of playing it.
type Sleeper struct {
	Costs schedule.Costs
	Unit  time.Duration // of the costs
	// Elements is the size of a message, in float32; 0 is 1.
	Elements int
}

// Compute implements [Worker]. It is an error that the context has ended, or that a message is not from the pass that it should be
// from.
func (s Sleeper) Compute(ctx context.Context, a schedule.Action, _ int, in Message) (Message, error) {
	if note, ok := in.(*note); ok && note.values[0] != float32(a.Microbatch) {
		return nil, fmt.Errorf("pipeline: it got the message for micro-batch %g", note.values[0])
	}
	if err := sleep(ctx, time.Duration(s.Costs.Took(a)*float64(s.Unit))); err != nil {
		return nil, err
	}
	if a.Pass == schedule.WeightGrad || a.Pass == schedule.Update {
		return nil, nil
	}
	return s.note(a), nil
}

// sleep waits, and is more exact at the end than a timer, which wakes a goroutine up to so late: an idle Go program waits for its
// timers in whole milliseconds on Linux.
func sleep(ctx context.Context, d time.Duration) error {
	const late = time.Millisecond
	end := time.Now().Add(d)
	if d > late {
		timer := time.NewTimer(d - late)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	for time.Now().Before(end) {
		runtime.Gosched()
	}
	return nil
}

// Room implements [Worker].
func (s Sleeper) Room(of schedule.Action) (Message, error) { return s.note(of), nil }

func (s Sleeper) note(a schedule.Action) *note {
	n := &note{make([]float32, max(s.Elements, 1))}
	n.values[0] = float32(a.Microbatch)
	return n
}

// note is a message of numbers, of which the first is the micro-batch.
type note struct{ values []float32 }

// Memory implements [Message].
func (n *note) Memory() (group.Type, group.Buffer, error) {
	return group.Float32, group.Buffer{Data: unsafe.Pointer(unsafe.SliceData(n.values)), Len: len(n.values)}, nil
}

// Free implements [Message].
func (n *note) Free() error { return nil }
