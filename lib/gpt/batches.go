package gpt

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/gomlx/gomlx/core/tensors"
)

// Batches gives the training batch of any step from the number of the step alone: nothing is remembered from one to
// the next, so a run can stop and go on anywhere and every rank can cut its own rows.
type Batches struct {
	text       []byte
	batch, seq int
	windows    int                  // in an epoch
	start      func(row uint64) int // where in the text a row begins, rows counted from the first of step 0
}

// Batches cuts the text to batches of the given number of sequences, each Seq positions long. An epoch is a pass over
// the windows of the text, each Seq inputs and, one byte on, Seq targets. Windows lie end to end, and the last is moved
// back to end with the text, so each byte but the first is a target in every epoch. Each window comes exactly once an
// epoch, in an order that the corpus' Seed and the epoch choose; a batch may hold the end of one epoch and the start of
// the next.
//
// It is an error if the configuration or the batch size is not valid, the text is too short for one sequence, or it has
// a byte outside of the vocabulary.
func (c Corpus) Batches(config Config, batch int) (*Batches, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	seq := config.Seq
	switch {
	case batch < 1:
		return nil, fmt.Errorf("gpt: batch size %d: it must be at least 1", batch)
	case batch > maxTokens/seq:
		return nil, fmt.Errorf("gpt: a batch of %d sequences of %d tokens: it must not have more than %d tokens", batch,
			seq, maxTokens)
	case len(c.Text) == 0:
		return nil, fmt.Errorf("gpt: corpus %q is empty: give it a text", c.Name)
	case !c.cyclic && len(c.Text) < seq+1:
		return nil, fmt.Errorf("gpt: corpus %q has %d bytes, a sequence of Config.Seq %d takes %d with its last target: "+
			"use a longer text or a shorter sequence", c.Name, len(c.Text), seq, seq+1)
	}
	if top := slices.Max(c.Text); int(top) >= config.Vocab {
		return nil, fmt.Errorf("gpt: corpus %q has byte %d at offset %d, Config.Vocab is %d: set it to at least %d",
			c.Name, top, bytes.IndexByte(c.Text, top), config.Vocab, int(top)+1)
	}
	b := &Batches{text: c.Text, batch: batch, seq: seq}
	if c.cyclic {
		b.windows = len(c.Text)
		b.start = func(row uint64) int { return int(row * referenceStride % uint64(len(c.Text))) }
		return b, nil
	}
	last := len(c.Text) - 1 - seq // where the last window starts
	b.windows = (last+seq-1)/seq + 1
	b.start = func(row uint64) int {
		n := uint64(b.windows)
		return min(int(newOrder(n, c.Seed, row/n).at(row%n))*seq, last)
	}
	return b, nil
}

// maxTokens is the most tokens in a batch, 8 GiB of them.
const maxTokens = 1 << 31

// Windows returns the number of sequences in an epoch.
func (b *Batches) Windows() int { return b.windows }

// Step returns the inputs and the targets, each (B,T) int32, of a step, counted from 0. A negative step is an error.
func (b *Batches) Step(step int) (inputs, targets *tensors.Tensor, err error) {
	return b.Rank(step, 0, 1)
}

// Rank returns the rows of a step's batch that belong to one rank of a world: inputs and targets, each (B/world,T)
// int32. Rank r has rows r·B/world to (r+1)·B/world−1 of the same batch that a single device gets. It is an error if
// the step is negative, the rank is outside of the world, or the world's size does not divide the batch.
func (b *Batches) Rank(step, rank, world int) (inputs, targets *tensors.Tensor, err error) {
	switch {
	case step < 0:
		return nil, nil, fmt.Errorf("gpt: step %d: count from 0", step)
	case world < 1 || rank < 0 || rank >= world:
		return nil, nil, fmt.Errorf("gpt: rank %d of %d: ranks go from 0 to the size of the world less 1", rank, world)
	case b.batch%world != 0:
		return nil, nil, fmt.Errorf("gpt: a batch of %d sequences cannot be shared by %d ranks: choose a multiple of %d",
			b.batch, world, world)
	}
	rows := b.batch / world
	in, out := make([]int32, 0, rows*b.seq), make([]int32, 0, rows*b.seq)
	first := uint64(step)*uint64(b.batch) + uint64(rank*rows)
	for r := range uint64(rows) {
		at := b.start(first + r)
		for i := range b.seq {
			in = append(in, int32(b.text[(at+i)%len(b.text)]))
			out = append(out, int32(b.text[(at+i+1)%len(b.text)]))
		}
	}
	return tensors.FromFlatDataAndDimensions(in, rows, b.seq), tensors.FromFlatDataAndDimensions(out, rows, b.seq), nil
}
