package main

import (
	"fmt"

	"github.com/shardbook/shardbook/lib/gpt"
)

// trainSize is the size of a model and of its batch. The fields are those of
// [gpt.Config], and the number of sequences.
type trainSize struct {
	Layers int `json:"layers"`
	Width  int `json:"d"`
	Heads  int `json:"heads"`
	Seq    int `json:"seq"`
	Batch  int `json:"batch"`
}

// trainSizes are what is measured by default: a small model, whose step is short
// enough to show what a step costs beside its arithmetic, and the reference model.
var trainSizes = []trainSize{
	{Layers: 2, Width: 128, Heads: 4, Seq: 64, Batch: 8},
	{Layers: 4, Width: 256, Heads: 8, Seq: 256, Batch: 16},
}

// trainLosses are the losses of the first steps. Those of the reference model are
// lib/gpt's; those of the small one are what PyTorch 2.15 and JAX 0.10.2 agree on.
// A size that is not here is checked by what the implementations say of it.
var trainLosses = map[trainSize][]float64{
	trainSizes[0]: {5.54506, 5.24437, 5.04355, 4.92261},
	trainSizes[1]: {5.58069, 4.70050, 4.37114, 4.22252},
}

const (
	// trainFirst is the number of steps whose losses are checked.
	trainFirst = 4

	// trainTolerance is how far apart losses may be, in nats. Rounding shows in
	// their sixth digit.
	trainTolerance = 1e-4

	// trainRate is AdamW's learning rate.
	trainRate = 3e-4
)

func (s trainSize) String() string {
	return fmt.Sprintf("layers %d, width %d, heads %d, %d×%d tokens", s.Layers, s.Width, s.Heads, s.Batch, s.Seq)
}

func (s trainSize) config() gpt.Config {
	return gpt.Config{Layers: s.Layers, Width: s.Width, Heads: s.Heads, Seq: s.Seq, Vocab: gpt.ReferenceConfig().Vocab}
}

// with returns the size with those of its fields changed that are set in other.
func (s trainSize) with(other trainSize) trainSize {
	set := func(field *int, value int) {
		if value != 0 {
			*field = value
		}
	}
	set(&s.Layers, other.Layers)
	set(&s.Width, other.Width)
	set(&s.Heads, other.Heads)
	set(&s.Seq, other.Seq)
	set(&s.Batch, other.Batch)
	return s
}
