package ddp_test

import (
	"context"
	"testing"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/cost"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/train"
)

// TestBucketMemory holds the memory of gradients and buckets against lib/memest: between steps a rank has its state and its
// gradients, which are in the buckets, and no more; and the backward passes, which write them there, take no more than one bucket's
// bytes of temporary memory above those that have a buffer for each gradient.
func TestBucketMemory(t *testing.T) {
	c := gpt.Config{Layers: 1, Width: 64, Heads: 2, Seq: 8, Vocab: 256}
	backend := devicetest.Open(t, 2)
	temporary := func(o ddp.Options) (worst int64, buckets []ddp.Bucket, held int64) {
		e := newEngine(t, backend, train.Recipe{Model: c, Rule: optim.AdamW(1e-3)}, o)
		batches := textSource(t, c, 4)
		if err := group.Run(context.Background(), 2, func(ctx context.Context, g group.Group) error {
			rank, err := e.Join(ctx, g, g.Rank())
			if err != nil {
				return err
			}
			for step := range 2 {
				inputs, targets, err := batches(step)
				if err != nil {
					return err
				}
				if _, err := rank.Step(ctx, inputs, targets); err != nil {
					return err
				}
			}
			if err := group.Barrier(ctx, g); err != nil {
				return err
			}
			if g.Rank() == 0 {
				held = backend.Live()[0].Bytes
			}
			if err := group.Barrier(ctx, g); err != nil {
				return err
			}
			return rank.Close() // or the next form finds its memory, until it is collected
		}); err != nil {
			t.Fatal(err)
		}
		programs, err := e.BackwardMemory()
		if err != nil {
			t.Fatal(err)
		}
		for name, m := range programs {
			worst = max(worst, m.Temporary)
			if gradients := m.Outputs - m.Aliased; gradients > 3*4*8*64*2+64 { // the input's gradient (2,8,64), the loss
				t.Errorf("%s: %d bytes of outputs are not in the buckets' memory", name, gradients)
			}
		}
		return worst, e.Buckets(), held
	}
	apart, _, _ := temporary(ddp.Options{Sync: ddp.Overlap})
	for _, limit := range []int64{150_000, ddp.DefaultBucketBytes} {
		together, buckets, held := temporary(ddp.Options{BucketBytes: limit})
		var gradients, largest int64
		for _, b := range buckets {
			gradients, largest = gradients+b.Bytes(), max(largest, b.Bytes())
		}
		ledger, err := memest.Estimate(memest.Setup{Model: cost.FromGPT(c), Layout: memest.Layout{Data: 2}, Bucket: largest})
		if err != nil {
			t.Fatal(err)
		}
		bytes := ledger.Largest().Of
		if gradients != bytes(memest.Gradients) {
			t.Errorf("buckets of %d bytes, gradients are %d", gradients, bytes(memest.Gradients))
		}
		state := bytes(memest.Parameters) + bytes(memest.Optimizer)
		if held < state+gradients || held > state+gradients+64 {
			t.Errorf("a rank holds %d bytes, its state and its gradients are %d", held, state+gradients)
		}
		t.Logf("buckets of at most %d bytes: %d bytes of temporary memory, %d with a buffer for each gradient", limit, together, apart)
		if together-apart > bytes(memest.Communication) {
			t.Errorf("buckets of %d bytes take %d bytes more in the backward pass, want at most %d", limit, together-apart,
				bytes(memest.Communication))
		}
	}
}
