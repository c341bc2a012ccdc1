package gpt

import (
	"cmp"
	"fmt"

	"github.com/gomlx/compute/dtypes/gotype"
	"github.com/gomlx/gomlx/core/tensors"
)

// CheckBatch returns an error that says which token of a batch (B,T) is not in the vocabulary, and where. No graph
// would: the embedding reads another one in its place, and the loss leaves it out. Targets below 0 are those that the
// loss is to leave out. It implements train.Checker.
func (c Config) CheckBatch(inputs, targets *tensors.Tensor) error {
	return cmp.Or(
		c.checkTokens("inputs", inputs, false, ""),
		c.checkTokens("targets", targets, true, ", or one below 0 where there is nothing to predict"))
}

// CheckBatch is [Config.CheckBatch].
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
	return fmt.Errorf("gpt: the %s have the token %d in row %d at position %d, and the vocabulary has %d: give tokens "+
		"from 0 to %d%s", what, token, at/row, at%row, c.Vocab, c.Vocab-1, or)
}

// outside returns the place of the first token that is not in a vocabulary, or −1. One below 0 is, where some are
// masked.
func outside[T gotype.NumericNotComplex](tokens []T, vocab int, masked bool) (int, int64) {
	for i, token := range tokens {
		if int64(token) >= int64(vocab) || token < 0 && !masked {
			return i, int64(token)
		}
	}
	return -1, 0
}
