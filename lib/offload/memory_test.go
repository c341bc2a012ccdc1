package offload_test

import (
	"testing"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/offload"
	"github.com/shardbook/shardbook/lib/trace"
)

// The bytes that a run counts are those that the backend's ledger has, now and at the peak; and what is on the host is
// what the device has less, to the byte.
func TestMemory(t *testing.T) {
	// A momentum takes the 280 bytes of the parameters. The inputs of blocks take 96 bytes and three times 64, of
	// which the last stays, and after the last block's backward pass there is the gradient of its input, 64 bytes more.
	const params, states, inputs, top = 280, 280, 96 + 2*64, 64 + 64
	for _, c := range []struct {
		o                                          offload.Options
		optimizer, hostOptimizer, acts, hostAtThat int64
	}{
		{offload.Options{}, states, 0, inputs + top, 0},
		{offload.Options{Optimizer: host, Activations: host}, 0, states, top, inputs},
		{offload.Options{Optimizer: host, Update: host, Activations: host}, 0, params + states, top, inputs}, // and master copies
	} {
		backend := devicetest.OpenOwn(t, 1)
		c.o.Trace = trace.New()
		run := startOn(t, backend, toy(), momentum, c.o)
		for step := range 2 {
			m := run.Memory()
			if live := backend.Live()[0].Bytes; m.Device.Now.Total() != live || live != params+c.optimizer ||
				m.Device.Now[offload.Optimizer] != c.optimizer || m.Host.Now.Total() != c.hostOptimizer {
				t.Errorf("%s: after %d steps %+v; the device has %d bytes; want %d of parameters and %d of states there, %d on the host",
					describe(c.o), step, m, live, params, c.optimizer, c.hostOptimizer)
			}
			learn(t, run, toyBatch, step+1)
			if got, want := run.Memory().Device.Peak.Total(), backend.PeakBytes()[0]; got != want {
				t.Errorf("%s: a peak of %d bytes, the ledger has %d", describe(c.o), got, want)
			}
		}
		// What the activations took when the last block's first gradient was there.
		var acts, hostActs int64
		for _, n := range c.o.Trace.Counters() {
			if n.Name == "device gradients" {
				break
			}
			switch n.Name {
			case "device activations":
				acts = n.Value
			case "host activations":
				hostActs = n.Value
			}
		}
		if acts != c.acts || hostActs != c.hostAtThat {
			t.Errorf("%s: %d bytes of activations on the device and %d on the host at the top, want %d and %d",
				describe(c.o), acts, hostActs, c.acts, c.hostAtThat)
		}
		if err := run.Close(); err != nil || backend.Live()[0].Buffers != 0 || run.Memory().Host.Now.Total() != 0 {
			t.Errorf("%s: after Close (%v): %+v on the device, %+v", describe(c.o), err, backend.Live()[0], run.Memory())
		}
	}
}
