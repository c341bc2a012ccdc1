package gpt

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/gomlx/gomlx/core/tensors"
)

// Batches returns the training batch of any step as a function of the step's number alone: it has no state, so a run
// can stop and continue anywhere and every rank can compute its own shard.
type Batches struct {
	text       []byte
	batch, seq int
	windows    int                // in an epoch
	start      func(n uint64) int // the offset in the text of sequence n, counted from step 0
}

// Batches splits the text into batches of the given number of sequences, each Seq tokens long. An epoch is one pass
// over all windows of the text; a window is Seq inputs and, shifted by one byte, Seq targets. Windows are consecutive,
// and the last one is moved back to end with the text, so each byte except the first is a target in every epoch. The
// corpus' Seed and the epoch choose the order of the windows; a batch may contain the end of one epoch and the start of
// the next.
//
// It is an error if the configuration or the batch size is invalid, the text is too short for one sequence, or the text
// has a byte outside of the vocabulary.
func (c Corpus) Batches(config Config, batch int) (*Batches, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	seq := config.Seq
	switch {
	case batch < 1:
		return nil, fmt.Errorf("gpt: batch size %d: set it to at least 1", batch)
	case batch > maxTokens/seq:
		return nil, fmt.Errorf("gpt: a batch of %d sequences of %d tokens: choose at most %d tokens per batch", batch,
			seq, maxTokens)
	case len(c.Text) == 0:
		return nil, fmt.Errorf("gpt: corpus %q is empty: give it a text", c.Name)
	case !c.cyclic && len(c.Text) < seq+1:
		return nil, fmt.Errorf("gpt: corpus %q has %d bytes, but a sequence of Config.Seq %d with its last target "+
			"needs %d: use a longer text or a shorter sequence", c.Name, len(c.Text), seq, seq+1)
	}
	if top := slices.Max(c.Text); int(top) >= config.Vocab {
		return nil, fmt.Errorf("gpt: corpus %q has byte %d at offset %d, but Config.Vocab is %d: set it to at least %d",
			c.Name, top, bytes.IndexByte(c.Text, top), config.Vocab, int(top)+1)
	}
	b := &Batches{text: c.Text, batch: batch, seq: seq}
	if c.cyclic {
		b.windows = len(c.Text)
		b.start = func(n uint64) int { return int(n * referenceStride % uint64(len(c.Text))) }
		return b, nil
	}
	last := len(c.Text) - 1 - seq // where the last window starts
	b.windows = (last+seq-1)/seq + 1
	b.start = func(n uint64) int {
		windows := uint64(b.windows)
		return min(int(newOrder(windows, c.Seed, n/windows).at(n%windows))*seq, last)
	}
	return b, nil
}

// maxTokens is the largest number of tokens in a batch, 8 GiB as int32.
const maxTokens = 1 << 31

// Windows returns the number of sequences in an epoch.
func (b *Batches) Windows() int { return b.windows }

// Step returns the inputs and the targets of a step, each (B,T) int32. Steps count from 0; a negative step is an error.
func (b *Batches) Step(step int) (inputs, targets *tensors.Tensor, err error) {
	return b.Rank(step, 0, 1)
}

// Rank returns one rank's shard of a step's batch: inputs and targets, each (B/world,T) int32. Rank r gets sequences
// r·B/world to (r+1)·B/world−1 of the batch that [Batches.Step] returns. It is an error if the step is negative, the
// rank is not below world, or world does not divide the batch.
func (b *Batches) Rank(step, rank, world int) (inputs, targets *tensors.Tensor, err error) {
	switch {
	case step < 0:
		return nil, nil, fmt.Errorf("gpt: step %d: choose at least 0", step)
	case world < 1 || rank < 0 || rank >= world:
		return nil, nil, fmt.Errorf("gpt: rank %d of %d: choose a rank from 0 to the number of ranks less 1", rank,
			world)
	case b.batch%world != 0:
		return nil, nil, fmt.Errorf("gpt: a batch of %d sequences cannot be split over %d ranks: choose a multiple of "+
			"%d", b.batch, world, world)
	}
	n := b.batch / world
	in, out := make([]int32, 0, n*b.seq), make([]int32, 0, n*b.seq)
	first := uint64(step)*uint64(b.batch) + uint64(rank*n)
	for r := range uint64(n) {
		at := b.start(first + r)
		for i := range b.seq {
			in = append(in, int32(b.text[(at+i)%len(b.text)]))
			out = append(out, int32(b.text[(at+i+1)%len(b.text)]))
		}
	}
	return tensors.FromFlatDataAndDimensions(in, n, b.seq), tensors.FromFlatDataAndDimensions(out, n, b.seq), nil
}
