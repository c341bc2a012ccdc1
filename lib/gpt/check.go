package gpt

import (
	"cmp"
	"fmt"

	"github.com/gomlx/compute/dtypes/gotype"
	"github.com/gomlx/gomlx/core/tensors"
)

// CheckBatch returns an error for a batch (B,T) with a token outside of the vocabulary, which names the token and its
// place. The graph would not notice: the embedding reads another token, and the loss ignores it. Targets below 0 are
// allowed: the loss ignores them. It implements train.Checker.
func (c Config) CheckBatch(inputs, targets *tensors.Tensor) error {
	return cmp.Or(
		c.checkTokens("inputs", inputs, false, ""),
		c.checkTokens("targets", targets, true, ", or a negative one to ignore a position"))
}

// CheckBatch implements train.Checker: see [Config.CheckBatch].
func (m Parallel) CheckBatch(inputs, targets *tensors.Tensor) error {
	return m.Config.CheckBatch(inputs, targets)
}

func (c Config) checkTokens(what string, t *tensors.Tensor, masked bool, or string) error {
	at, token := -1, int64(0)
	if err := t.ConstFlatData(func(flat any) {
		switch tokens := flat.(type) {
		case []int8:
			at, token = outside(tokens, c.Vocab, masked)
		case []int16:
			at, token = outside(tokens, c.Vocab, masked)
		case []int32:
			at, token = outside(tokens, c.Vocab, masked)
		case []int64:
			at, token = outside(tokens, c.Vocab, masked)
		case []uint8:
			at, token = outside(tokens, c.Vocab, masked)
		case []uint16:
			at, token = outside(tokens, c.Vocab, masked)
		case []uint32:
			at, token = outside(tokens, c.Vocab, masked)
		}
	}); err != nil || at < 0 || t.Rank() == 0 {
		return err
	}
	row := t.Size() / t.Shape().Dim(0)
	return fmt.Errorf("gpt: the %s have token %d in sequence %d at position %d, but the vocabulary has %d: use tokens "+
		"from 0 to %d%s", what, token, at/row, at%row, c.Vocab, c.Vocab-1, or)
}

// outside returns the index of the first token that is not in the vocabulary, or −1; masked allows negative tokens.
func outside[T gotype.NumericNotComplex](tokens []T, vocab int, masked bool) (int, int64) {
	for i, token := range tokens {
		if int64(token) >= int64(vocab) || token < 0 && !masked {
			return i, int64(token)
		}
	}
	return -1, 0
}
