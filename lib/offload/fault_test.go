package offload_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/offload"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/trace"
)

var momentum = optim.SGDRule{LR: 0.1, Momentum: 0.9}

// countdown is a context that is cancelled when it has been looked at so many times.
type countdown struct {
	context.Context
	left atomic.Int64
	done chan struct{}
}

func newCountdown(ctx context.Context, looks int) *countdown {
	c := &countdown{Context: ctx, done: make(chan struct{})}
	c.left.Store(int64(looks))
	return c
}

func (c *countdown) look() {
	if c.left.Add(-1) == -1 {
		close(c.done)
	}
}

func (c *countdown) Done() <-chan struct{} { c.look(); return c.done }

func (c *countdown) Err() error {
	c.look()
	select {
	case <-c.done:
		return context.Canceled
	default:
		return nil
	}
}

// A step that is cancelled anywhere has either not been or has been to its end: the run stands where it stood and goes
// on as if nothing had happened, and nothing is left on the device or running.
func TestCancelledAnywhere(t *testing.T) {
	const steps = 3
	before := runtime.NumGoroutine()
	want := plainly(t, toy(), momentum, precision.Policy{}, toyBatch, steps)
	for _, o := range onHost {
		o.Prefetch = 1
		run := start(t, toy(), momentum, o)
		live, now := devicetest.One().Live()[0], run.Memory()
		losses, cancelled := []float64(nil), 0
		for run.Steps() < steps {
			step := run.Steps()
			inputs, targets := toyBatch(step)
			for looks := 0; run.Steps() == step; looks++ {
				loss, err := run.Step(newCountdown(t.Context(), looks), inputs, targets)
				if err == nil {
					losses = append(losses, loss)
				} else if cancelled++; !errors.Is(err, context.Canceled) || run.Steps() != step {
					t.Fatalf("%s: after %d looks: %v", describe(o), looks, err)
				}
				m := run.Memory()
				if got := devicetest.One().Live()[0]; got != live || m.Host.Now.Total() != now.Host.Now.Total() {
					t.Fatalf("%s: after %d looks (error %v): %+v on the device, %+v; before %+v, %+v", describe(o), looks, err, got, m, live, now)
				}
			}
		}
		t.Logf("%s: %d steps were cancelled", describe(o), cancelled)
		if cancelled < 3*steps {
			t.Errorf("%s: only %d steps were cancelled", describe(o), cancelled)
		}
		got := learn(t, run, toyBatch, steps)
		got.losses = losses
		near(t, o, got, want, 32)
	}
	noLeak(t, before)
}

// failing is a rule that fails for one parameter, when its update is compiled.
type failing struct {
	optim.SGDRule
	name string
}

func (r failing) Update(u optim.Update) (*graph.Node, []*graph.Node) {
	if u.Spec.Name == r.name {
		panic(fmt.Sprintf("no update for %q", r.name))
	}
	return r.SGDRule.Update(u)
}

// After an error in the midst of the updates a run says that it is lost, and holds nothing.
func TestLost(t *testing.T) {
	before, live := runtime.NumGoroutine(), devicetest.One().Live()[0]
	for _, o := range onHost {
		run := start(t, toy(), failing{momentum, "h0.w"}, o)
		inputs, targets := toyBatch(0)
		for range 2 {
			if _, err := run.Step(t.Context(), inputs, targets); !matches(err, "the run is lost") || !matches(err, `no update for "h0.w"`) {
				t.Errorf("%s: %v", describe(o), err)
			}
		}
		if _, err := run.Params(); !matches(err, "the run is lost") {
			t.Errorf("%s: parameters of a lost run: error %v", describe(o), err)
		}
		if got, m := devicetest.One().Live()[0], run.Memory(); got != live || m.Host.Now.Total() != 0 {
			t.Errorf("%s: %+v on the device, %+v before; %+v", describe(o), got, live, m)
		}
	}
	noLeak(t, before)
}

// What is wrong with a batch is an error, and the run goes on.
func TestWrongBatch(t *testing.T) {
	run := start(t, toy(), momentum, offload.Options{Activations: host, Optimizer: host, Prefetch: 1})
	inputs, targets := toyBatch(0)
	live := devicetest.One().Live()[0]
	for what, b := range map[string][2]*tensors.Tensor{
		"no inputs":    {nil, targets},
		"no targets":   {inputs, nil},
		"wide inputs":  {tensors.FromValue([][]float32{{1, 2, 3, 4, 5, 6, 7}}), targets},
		"wide targets": {inputs, tensors.FromValue([][]float32{{1, 2, 3, 4, 5, 6, 7}})},
	} {
		if _, err := run.Step(t.Context(), b[0], b[1]); !matches(err, "offload: step 0: ") || matches(err, "lost") {
			t.Errorf("%s: %v", what, err)
		}
		if got := devicetest.One().Live()[0]; got != live {
			t.Errorf("%s: %+v on the device, %+v before", what, got, live)
		}
	}
	if loss, err := run.Step(t.Context(), inputs, targets); err != nil || !(loss > 0) {
		t.Errorf("after errors: loss %g, %v", loss, err)
	}
	if err := run.Close(); err != nil {
		t.Error(err)
	}
	if _, err := run.Step(t.Context(), inputs, targets); !matches(err, "closed") {
		t.Errorf("a step after Close: %v", err)
	}
	if _, err := run.State(); !matches(err, "closed") {
		t.Errorf("states after Close: %v", err)
	}
}

// The device runs ahead of a link that takes years by as many blocks as Options.Prefetch says, and not by one more.
func TestAheadOfTheLink(t *testing.T) {
	for prefetch, want := range []int{1, 2} {
		r := trace.New()
		run := start(t, toy(), optim.SGD(0.1), offload.Options{Activations: host, Prefetch: prefetch, Bandwidth: 1e-9, Trace: r})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		failed := make(chan error)
		go func() {
			inputs, targets := toyBatch(0)
			_, err := run.Step(ctx, inputs, targets)
			failed <- err
		}()
		for len(trace.Of(r.Spans(), 0, "compute")) < want {
			time.Sleep(time.Millisecond)
		}
		cancel()
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Errorf("prefetch %d: %v", prefetch, err)
		}
		if got := trace.Of(r.Spans(), 0, "compute"); len(got) != want {
			t.Errorf("prefetch %d: the device computed %v, want %d blocks", prefetch, got, want)
		}
	}
}

// With nothing prefetched the device waits for each transfer; the time line shows the streams.
func TestTrace(t *testing.T) {
	r := trace.New()
	learn(t, start(t, toy(), momentum, offload.Options{Optimizer: host, Update: host, Activations: host, Trace: r}), toyBatch, 1)
	var names []string
	spans := r.Spans()
	for _, s := range spans {
		names = append(names, s.Stream+": "+s.Name)
	}
	const want = `[compute: forward in compute: forward h0 compute: forward h1 compute: backward out compute: backward h1 ` +
		`compute: backward h0 compute: backward in host: update out host: update h1 host: update h0 host: update in ` +
		`to device: parameters out to device: activations h1 to device: parameters h1 to device: activations h0 ` +
		`to device: parameters h0 to device: activations in to device: parameters in ` +
		`to host: activations in to host: activations h0 to host: activations h1 ` +
		`to host: gradients out to host: gradients h1 to host: gradients h0 to host: gradients in]`
	var got []string
	for _, n := range names {
		if n[:4] != "wait" { // which there is only where the transfer was not quicker than the look at it
			got = append(got, n)
		}
	}
	if fmt.Sprint(got) != want {
		t.Errorf("spans\n%v\nwant\n%v", got, want)
	}
	for _, stream := range []string{"to host", "to device", "host"} {
		if share := trace.Overlap(trace.Of(spans, 0, stream), trace.Of(spans, 0, "compute")); share != 0 {
			t.Errorf("%g of the time of %q is also the device's, which should wait", share, stream)
		}
	}
}
