package ddp_test

import (
	"testing"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/cost"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/train"
)

// TestBucketMemory compares a rank's memory with lib/memest: between steps it has its state and its gradients, which
// are in the buckets, and no more.
func TestBucketMemory(t *testing.T) {
	c := gpt.Config{Layers: 1, Width: 64, Heads: 2, Seq: 8, Vocab: 256}
	ledger := must.Get(memest.Estimate(memest.Setup{Model: cost.FromGPT(c),
		Parallelism: memest.Parallelism{Data: 2}}))(t)
	of := ledger.Largest().Of
	for _, limit := range []int64{1, 150_000, ddp.DefaultBucketBytes} {
		backend := devicetest.OpenOwn(t, 2)
		run := start(t, backend, train.Recipe{Model: c, Optimizer: optim.AdamW(1e-3)}, 2,
			ddp.Options{BucketBytes: limit})
		learn(t, run, 2, textSource(t, c, 4))
		for _, kind := range []memest.Kind{memest.Parameters, memest.Optimizer, memest.Gradients} {
			if got := run.Memory()[kind]; got != of(kind) {
				t.Errorf("buckets of %d bytes: %d bytes of %s, want %d", limit, got, kind, of(kind))
			}
		}
		want := of(memest.Parameters) + of(memest.Optimizer) + of(memest.Gradients)
		if held := backend.Live()[0].Bytes; held < want || held > want+64 {
			t.Errorf("buckets of %d bytes: a rank holds %d bytes, its state and its gradients are %d", limit, held,
				want)
		}
		must.Do(t, run.Close())
	}
}
