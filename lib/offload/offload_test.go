package offload_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/offload"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/train"
)

var momentum = optim.SGDOptimizer{LR: 0.1, Momentum: 0.9}

// ways are what can be on the host, each with and without transfers ahead.
func ways() (all []offload.Host) {
	for _, h := range []offload.Host{{}, {Activations: true}, {Optimizer: true, Activations: true},
		{Update: true, Activations: true}} {
		all = append(all, h)
		h.Prefetch = 2
		all = append(all, h)
	}
	return all[1:]
}

func policy(t *testing.T, name string) precision.Policy {
	t.Helper()
	p := must.Get(precision.ParsePolicy(name))(t)
	return p
}

// TestWays compares runs with one program of one device. Moving data changes no bits as long as the device updates, and
// none as long as the host updates.
func TestWays(t *testing.T) {
	const steps = 3
	batches := func(i int) (*tensors.Tensor, *tensors.Tensor) { return toy.Batch(i, 4) }
	bare := toy.Layers(3, false)
	bare.Blocks = append([]chain.Block{{Name: "half", Apply: func(_ params.Nodes, x, _, _ *graph.Node) *graph.Node {
		return graph.MulScalar(x, 0.5)
	}}}, bare.Blocks...)
	// Biases of one block have another rule, so blocks of one kind must not share their updates.
	grouped := optim.Grouped(optim.AdamW(1e-2), optim.Group{Has: optim.Named("1.b"), Optimizer: optim.SGD(0.1)})
	for name, r := range map[string]train.Recipe{
		"momentum, tied":     {Model: toy.Model(true), Optimizer: momentum},
		"groups":             {Model: toy.Layers(3, false), Optimizer: grouped},
		"adafactor":          {Model: toy.Layers(3, false), Optimizer: optim.Adafactor(1e-2)},
		"without parameters": {Model: bare, Optimizer: momentum},
		"one block":          {Model: traintest.Whole{Model: toy.Model(true)}, Optimizer: momentum},
		"clipped":            {Model: toy.Layers(3, false), Optimizer: momentum, Clip: 0.1},
		"bf16":               {Model: toy.Layers(3, false), Optimizer: momentum, Precision: policy(t, "bf16")},
		"fp16, loss scaled":  {Model: toy.Layers(3, false), Optimizer: momentum, Precision: policy(t, "fp16")},
	} {
		t.Run(name, func(t *testing.T) {
			want, metrics := traintest.Alone(t, devicetest.One(), r, steps, batches)
			same := map[bool]traintest.Named{}
			for _, h := range ways() {
				run, err := offload.New(t.Context(), devicetest.One(), r, offload.Options{Host: h})
				if r.NeedsAllGradients() && h.Optimizer {
					if !matches(err, "before the gradients of all units are complete") {
						t.Errorf("%+v: error %v", h, err)
					}
					continue
				}
				must.Do(t, err)
				for i := range steps {
					in, out := batches(i)
					m := must.Get(run.Step(t.Context(), in, out))(t)
					if d := m.Loss/metrics[i].Loss - 1; !(math.Abs(d) < 1e-5) && r.Precision == (precision.Policy{}) {
						t.Errorf("%+v: step %d: loss %g, want %g", h, i, m.Loss, metrics[i].Loss)
					}
				}
				got := must.Get(run.Params(t.Context()))(t)
				must.Do(t, run.Close())
				if off := traintest.Apart(t, want, got); !(off <= 64) {
					t.Errorf("%+v: %g units apart", h, off)
				}
				if first := same[h.Update]; first == nil {
					same[h.Update] = got
				} else if name := traintest.Differ(first, got); name != "" {
					t.Errorf("%+v: %s differs from a run that differs in where things are kept", h, name)
				}
			}
		})
	}
}

// TestMemory compares the memory that a run counts with the backend's ledger and, on both sides, with the sizes of the
// data.
func TestMemory(t *testing.T) {
	m := toy.Layers(4, false)
	states := optim.States(momentum, m.Params()).Bytes()
	// Buffers of gradients stay for the next step, one of each size: the two layers between have the same. Where the
	// host updates, those of a parameter that is not used are among them.
	buffers, idle := m.Params().Bytes()-m.Blocks[1].Params.Bytes(), int64(20)
	for _, c := range []struct {
		h            offload.Host
		p            string
		device, host int64 // of states between steps
	}{
		{offload.Host{}, "fp32", states, 0},
		{offload.Host{Optimizer: true, Activations: true}, "fp32", 0, states},
		{offload.Host{Update: true, Activations: true}, "fp32", 0, states},
		{offload.Host{Update: true, Activations: true}, "bf16", 0, states},
	} {
		backend := devicetest.OpenOwn(t, 1)
		r := trace.New()
		recipe := train.Recipe{Model: m, Optimizer: momentum, Precision: policy(t, c.p)}
		run := must.Get(offload.New(t.Context(), backend, recipe, offload.Options{Host: c.h, Trace: r}))(t)
		now, device, peak := map[string]int64{}, int64(0), int64(0)
		count := func() {
			now, device, peak = map[string]int64{}, 0, 0
			for _, n := range r.Counters() {
				if !strings.HasPrefix(n.Name, "host ") {
					device += n.Value - now[n.Name]
					peak = max(peak, device)
				}
				now[n.Name] = n.Value
			}
		}
		kept := m.Params().As(recipe.Policy().Compute).Bytes()
		for range 2 {
			in, out := toy.Batch(0, 4)
			_, err := run.Step(t.Context(), in, out)
			must.Do(t, err)
			count()
			master := int64(0)
			if c.h.Update {
				master = m.Params().Bytes()
			}
			if now["parameters"] != kept || now["optimizer"] != c.device || now["host optimizer"] != c.host ||
				now["host master copy"] != master ||
				now["activations"]+now["gradients"]+now["host activations"]+now["host gradients"] != 0 {
				t.Errorf("%+v, %s: %v, want %d bytes of parameters, %d and %d of states", c.h, c.p, now, kept, c.device,
					c.host)
			}
			spare := buffers
			if !c.h.Update {
				spare -= idle
			}
			if got := backend.Live()[0].Bytes; got != device+spare || peak > backend.PeakBytes()[0] {
				t.Errorf("%+v, %s: %d bytes are counted, %d at most; the device has %d, %d at most", c.h, c.p, device,
					peak, got, backend.PeakBytes()[0])
			}
		}
		if most := run.Memory(); c.h.Activations && most[memest.Activations] == 0 || c.h.Update &&
			most["host gradients"] == 0 {
			t.Errorf("%+v: %v", c.h, most)
		}
		must.Do(t, run.Close())
		if live := backend.Live()[0]; live.Buffers != 0 {
			t.Errorf("%+v: after Close %+v on the device", c.h, live)
		}
	}
}

// TestAheadOfTheLink has a link that takes years: the device runs ahead by exactly Prefetch blocks. The run fails when
// its context ends.
func TestAheadOfTheLink(t *testing.T) {
	for prefetch, want := range []int{1, 2} {
		r := trace.New()
		h := offload.Host{Activations: true, Prefetch: prefetch}
		recipe := train.Recipe{Model: toy.Layers(5, false), Optimizer: optim.SGD(0.1)}
		run := must.Get(offload.New(t.Context(), devicetest.One(), recipe,
			offload.Options{Host: h, Bandwidth: 1e-9, Trace: r}))(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		failed := make(chan error)
		go func() {
			in, out := toy.Batch(0, 4)
			_, err := run.Step(ctx, in, out)
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
		if _, err := run.Params(t.Context()); !matches(err, "has failed") {
			t.Errorf("prefetch %d: parameters of a lost run: error %v", prefetch, err)
		}
		must.Do(t, run.Close())
	}
}

// TestTrace has the streams of a step in which the device waits for each transfer.
func TestTrace(t *testing.T) {
	r := trace.New()
	recipe := train.Recipe{Model: toy.Layers(2, false), Optimizer: momentum}
	run := must.Get(offload.New(t.Context(), devicetest.One(), recipe,
		offload.Options{Host: offload.Host{Update: true, Activations: true}, Trace: r}))(t)
	in, out := toy.Batch(0, 4)
	must.Get(run.Step(t.Context(), in, out))(t)
	must.Do(t, run.Close())
	spans := map[string][]string{}
	for _, s := range r.Spans() {
		spans[s.Stream] = append(spans[s.Stream], s.Name)
	}
	delete(spans, "wait") // which there is only where the transfer was not quicker than the look at it
	const want = "map[compute:[0F0 1F0 1B0 0R0] host:[1HOST_U0 0HOST_U0] to device:[1FETCH_PARAM 0FETCH_F0 " +
		"0FETCH_PARAM] to host:[0STORE_F0 1STORE_GRAD 0STORE_GRAD]]"
	if got := fmt.Sprint(spans); got != want {
		t.Errorf("spans\n%v\nwant\n%v", got, want)
	}
	share := trace.Overlap(trace.Of(r.Spans(), 0, "to host"), trace.Of(r.Spans(), 0, "compute"))
	if share != 0 {
		t.Errorf("%g of the time to the host is also the device's, which should wait", share)
	}
}

// TestPlan checks the lists: nothing between a block's recomputation and its backward pass, which are one program, and
// states that arrive right before their update, or after passes of other blocks.
func TestPlan(t *testing.T) {
	recipe := train.Recipe{Model: toy.Layers(3, false), Optimizer: momentum}
	for ahead, want := range []string{
		"0F0 0STORE_F0 WAIT_0STORE_F0 1F0 1STORE_F0 WAIT_1STORE_F0 2F0 2B0 2FETCH_STATE 2U0 2STORE_STATE " +
			"WAIT_2STORE_STATE " +
			"1FETCH_F0 1R0 1B0 1FETCH_STATE 1U0 1STORE_STATE WAIT_1STORE_STATE 0FETCH_F0 0R0 0B0 0FETCH_STATE 0U0 " +
			"0STORE_STATE WAIT_0STORE_STATE",
		"0F0 0STORE_F0 1F0 1STORE_F0 WAIT_0STORE_F0 2F0 2FETCH_STATE 1FETCH_F0 2B0 2U0 2STORE_STATE " +
			"1FETCH_STATE 0FETCH_F0 1R0 1B0 1U0 1STORE_STATE WAIT_2STORE_STATE 0FETCH_STATE 0R0 0B0 0U0 0STORE_STATE " +
			"WAIT_1STORE_STATE",
	} {
		p := must.Get(offload.Options{Host: offload.Host{Optimizer: true, Activations: true,
			Prefetch: ahead}}.Plan(recipe))(t)
		var got []string
		for _, op := range p.Ranks[0] {
			got = append(got, p.Text(op))
		}
		if got := strings.Join(got, " "); got != want {
			t.Errorf("prefetch %d:\n%s\nwant\n%s", ahead, got, want)
		}
	}
}

func TestRefused(t *testing.T) {
	good := train.Recipe{Model: toy.Layers(2, false), Optimizer: momentum}
	for want, c := range map[string]struct {
		r train.Recipe
		o offload.Options
	}{
		"Prefetch is -1":   {good, offload.Options{Host: offload.Host{Prefetch: -1}}},
		"Bandwidth is NaN": {good, offload.Options{Bandwidth: math.NaN()}},
		"no optimizer":     {train.Recipe{Model: good.Model}, offload.Options{}},
	} {
		if _, err := offload.New(t.Context(), devicetest.One(), c.r, c.o); !matches(err, want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if _, err := offload.New(t.Context(), nil, good, offload.Options{}); !matches(err, "backend is nil") {
		t.Errorf("no backend: %v", err)
	}
}

func matches(err error, want string) bool { return err != nil && strings.Contains(err.Error(), want) }
