package train_test

import (
	"testing"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/sequence"
)

// No device has all logits, the activations of all tokens, or a score for each pair of tokens.
func TestSharedMemory(t *testing.T) {
	temporary := func(w way, c gpt.Config, batch int) int64 {
		m := must.Get(w.passes(t, c, batch, true).Memory())(t)
		return m.Temporary
	}
	long := gpt.Config{Layers: 1, Width: 32, Heads: 4, Vocab: 64, Positions: gpt.Rotary, Flash: true}
	var one int64
	for _, p := range []int{1, 4} {
		c := long
		c.Seq = 512 * p
		got := temporary(way{ring: p, placement: sequence.Zigzag}, c, 1)
		if p == 1 {
			one = got
		}
		t.Logf("%d devices, %d tokens: %d bytes", p, c.Seq, got)
		if float64(got) > float64(one)/0.9 {
			t.Errorf("%d devices need %d bytes each for %d tokens, one %d for %d: they take no context %g times as "+
				"long", p, got, c.Seq, one, 512, 0.9*float64(p))
		}
		if scores := int64(4 * c.Heads * 512 * c.Seq); p == 4 && got >= scores {
			t.Errorf("%d devices need %d bytes each, as much as scores of their queries: %d", p, got, scores)
		}
	}
	wide := gpt.Config{Layers: 1, Width: 16, Heads: 8, Seq: 64, Vocab: 4093}
	if got, logits := temporary(way{tensor: 8}, wide, 2), int64(4*2*wide.Seq*wide.Vocab); got >= logits/2 {
		t.Errorf("%d bytes on each of 8 devices, where all logits have %d", got, logits)
	}
	// In units of B·T·C a block saves the inputs and outputs of its two normalizations, 4, and about 3 in the layers of
	// 4 devices. With sequence parallelism the 4 are a quarter: 4 of 7.
	deep := gpt.Config{Layers: 2, Width: 64, Heads: 4, Seq: 64, Vocab: 32, Flash: true}
	plain, shared := temporary(way{tensor: 4}, deep, 4), temporary(way{tensor: 4, sequence: true}, deep, 4)
	t.Logf("tensor 4: %d bytes, with sequence %d", plain, shared)
	if float64(shared) > 0.7*float64(plain) {
		t.Errorf("with the tokens shared %d bytes, and %d without", shared, plain)
	}
}
