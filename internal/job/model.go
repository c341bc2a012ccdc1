package job

import (
	"cmp"

	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/sequence"
	"github.com/shardbook/shardbook/lib/tensor"
	"github.com/shardbook/shardbook/lib/train"
)

// model returns the model for the devices of a rank.
func (p *Parallel) model(c gpt.Config) train.Model {
	if !p.Sharing() || p.Sync == Auto { // the compiler shards the model of one device
		return c
	}
	m := gpt.Parallel{Config: c, Sequence: p.sequenceGroup()}
	if p.Tensor > 0 {
		m.Tensor = tensor.Group{Axis: parallel.Tensor, Sequence: p.TensorSequence, Overlap: p.TensorOverlap}
	}
	return m
}

// sequenceGroup returns the group of sequence-parallel devices.
func (p *Parallel) sequenceGroup() (g sequence.Group) {
	if p.SeqParallel == 0 {
		return g
	}
	g.Placement = p.Placement
	if p.SeqMethod != "ulysses" {
		g.Ring, g.Gather, g.Placement = parallel.Ring, p.SeqMethod == "allgather", cmp.Or(p.Placement, sequence.Zigzag)
	}
	if p.SeqMethod == "ulysses" || p.SeqMethod == "hybrid" {
		g.Ulysses = parallel.Ulysses
	}
	return g
}

// keyHeads returns the number of key/value heads of a device.
func (j *Job) keyHeads() int {
	return max(1, cmp.Or(j.Model.KVHeads, j.Model.Heads)/max(1, j.Parallel.Tensor))
}
