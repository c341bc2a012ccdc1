package offload

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/xla"
)

// link is the way between a mesh's devices and the host. What is moved stays the same tensor: only its shards' memory
// changes. It is counted in the holdings, where it must be.
type link struct {
	mesh      *xla.Mesh
	bandwidth float64 // bytes per second, simulated; 0 for none
	trace     *trace.Recorder
	held      *holdings

	up, down, host lane // to the device, to the host, and the work there
}

func newLink(mesh *xla.Mesh, bandwidth float64, r *trace.Recorder) *link {
	return &link{mesh: mesh, bandwidth: bandwidth, trace: r, held: newHoldings(r),
		up: lane{name: "to device"}, down: lane{name: "to host"}, host: lane{name: "host"}}
}

// lane does one job after the other, in the order in which they were begun.
type lane struct {
	name string
	mu   sync.Mutex
	last *transfer
}

// transfer is a job on a lane. It always comes to its end by itself.
type transfer struct {
	what  string
	link  *link
	hurry context.CancelFunc // ends simulated slowness
	done  chan struct{}
	err   error // when done
}

// begin has a lane do a job in the background when another one, which may be nil, is done; that one's error is its own.
// The job's context ends simulated slowness: with ctx, or as somebody is in a hurry.
func (l *link) begin(ctx context.Context, on *lane, after *transfer, what string, job func(ctx context.Context) error) *transfer {
	ctx, hurry := context.WithCancel(ctx)
	t := &transfer{what: what, link: l, hurry: hurry, done: make(chan struct{})}
	on.mu.Lock()
	before := on.last
	on.last = t
	on.mu.Unlock()
	go func() {
		defer close(t.done)
		defer hurry()
		if before != nil {
			<-before.done
		}
		if after != nil {
			if <-after.done; after.err != nil {
				t.err = after.err
				return
			}
		}
		defer l.trace.Start(0, on.name, what)()
		if err := attempt(func() error { return job(ctx) }); err != nil {
			t.err = fmt.Errorf("offload: %s, %s: %w", on.name, what, err)
		}
	}()
	return t
}

// attempt returns a panic as an error: a rule's graph function may have one, and here nobody else would catch it.
func attempt(job func() error) (err error) {
	defer func() {
		if thrown := recover(); thrown != nil {
			err = fmt.Errorf("panic: %v", thrown)
		}
	}()
	return job()
}

// pace waits until so many bytes would have passed a link of the simulated bandwidth. A cancelled context ends the wait.
func (l *link) pace(ctx context.Context, start time.Time, bytes int64) {
	if l.bandwidth == 0 || bytes == 0 {
		return
	}
	takes := time.Duration(min(float64(bytes)/l.bandwidth, 1e9) * float64(time.Second)) // at most some thirty years
	timer := time.NewTimer(takes - time.Since(start))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// toHost copies tensors to the host, and frees their memory on the devices.
func (l *link) toHost(ctx context.Context, what string, xs []*dtensor.Tensor) *transfer {
	return l.begin(ctx, &l.down, nil, what, func(ctx context.Context) error {
		l.pace(ctx, time.Now(), bytesOfAll(xs)) // and then free the memory, as a slow transfer would
		return l.each(xs, Host, func(_ int, shard *tensors.Tensor) error { return shard.ToLocal() })
	})
}

// toDevice brings them back when what took them away is done.
func (l *link) toDevice(ctx context.Context, after *transfer, what string, xs []*dtensor.Tensor) *transfer {
	return l.begin(ctx, &l.up, after, what, func(ctx context.Context) error {
		start := time.Now()
		defer func() { l.pace(ctx, start, bytesOfAll(xs)) }()
		return l.each(xs, Device, func(device int, shard *tensors.Tensor) error {
			// Memory that Go and the device share could not be donated.
			if err := shard.MaterializeOnDevice(l.mesh.Backend(), false, xla.DeviceNum(device)); err != nil {
				return err
			}
			shard.FinalizeLocal()
			return nil
		})
	})
}

// each moves the shards of all tensors.
func (l *link) each(xs []*dtensor.Tensor, to Where, move func(device int, shard *tensors.Tensor) error) error {
	for _, x := range xs {
		for device, shard := range x.Shards() {
			if err := move(device, shard); err != nil {
				return err
			}
		}
		l.held.moved(x, to)
	}
	return nil
}

// wait returns the transfer's error when it is done, or the context's if that is cancelled before. The time is "wait"'s.
// For a nil transfer there is nothing to wait.
func (t *transfer) wait(ctx context.Context) error {
	if t == nil {
		return nil
	}
	select {
	case <-t.done:
		return t.err
	default:
	}
	defer t.link.trace.Start(0, "wait", t.what)()
	select {
	case <-t.done:
		return t.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func bytesOfAll(xs []*dtensor.Tensor) (total int64) {
	for _, x := range xs {
		total += bytesOf(x)
	}
	return total
}
