package offload_test

import (
	"fmt"
	"testing"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/offload"
	"github.com/shardbook/shardbook/lib/optim"
)

// watched is a rule that calls somebody as the update of a parameter is compiled: in the first step, in the midst of it.
type watched struct {
	optim.SGDRule
	seen func(parameter string)
}

func (r watched) Update(u optim.Update) (*graph.Node, []*graph.Node) {
	r.seen(u.Spec.Name)
	return r.SGDRule.Update(u)
}

// While a block is updated, the device has, or is about to have, the states of that block and the states and inputs of as
// many blocks below it as Options.Prefetch says: no fewer, and no more.
func TestPrefetch(t *testing.T) {
	names := []string{"in.w", "h0.b", "h1.b", "out.b"} // a parameter of each block
	states := []int64{4 * 24, 4 * 20, 4 * 20, 4 * 6}   // a momentum each; in.w is at home in the first block
	inputs := []int64{4 * 24, 4 * 16, 4 * 16, 4 * 16}  // of a batch of 4
	for _, prefetch := range []int{1, 2} {
		t.Run(fmt.Sprint(prefetch), func(t *testing.T) {
			var run *offload.Run
			updated := 0
			rule := watched{momentum, func(parameter string) {
				for i, name := range names {
					if name != parameter {
						continue
					}
					updated++
					if _, err := run.State(); err != nil { // which waits for all states that are on their way
						t.Error(err)
					}
					var wantStates, wantActs int64
					for below := i - min(i, prefetch); below <= i; below++ {
						wantStates += states[below]
						if below < i {
							wantActs += inputs[below]
						}
					}
					if i > 0 { // the gradient for the block below
						wantActs += inputs[i]
					}
					now := run.Memory().Device.Now
					if now[offload.Optimizer] != wantStates || now[offload.Activations] != wantActs {
						t.Errorf("update of block %d: %d bytes of states and %d of activations on the device, want %d and %d",
							i, now[offload.Optimizer], now[offload.Activations], wantStates, wantActs)
					}
				}
			}}
			run = start(t, toy(), rule, offload.Options{Optimizer: host, Activations: host, Prefetch: prefetch})
			if learn(t, run, toyBatch, 1); updated != len(names) {
				t.Errorf("%d updates were watched, want %d", updated, len(names))
			}
		})
	}
}
