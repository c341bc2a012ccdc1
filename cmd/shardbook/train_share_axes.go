package main

import (
	"cmp"
	"fmt"

	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// axes are those of the mesh: the devices that share a layer, which send the most, are neighbours, and then those that
// exchange heads.
func (j *job) axes() ([]xla.MeshAxis, error) {
	p := j.Parallel
	axes, group := []xla.MeshAxis{xla.Axis(train.Axis, p.Data)}, p.sequenceGroup()
	ring, ulysses, err := p.degrees(j.keyHeads())
	if err != nil {
		return nil, err
	}
	if group.Ring != "" {
		axes = append(axes, xla.Axis(group.Ring, ring))
	}
	if group.Ulysses != "" {
		axes = append(axes, xla.Axis(group.Ulysses, ulysses))
	}
	if p.Tensor > 0 {
		axes = append(axes, xla.Axis(tensorAxis, p.Tensor))
	}
	return axes, nil
}

// degrees are the numbers of devices of a ring and of a group of Ulysses, which is where it is not given what suits a model with so
// many key/value heads on each device. Whether the heads can be exchanged is for the model to say.
func (s *shareSettings) degrees(keyHeads int) (ring, ulysses int, err error) {
	n := max(1, s.SeqParallel)
	switch s.method() {
	case seqUlysses:
		return 1, n, nil
	case seqHybrid:
		if ulysses = s.SeqUlysses; ulysses == 0 {
			ulysses = largestBelow(n, keyHeads)
		}
		if ulysses == 1 {
			return 0, 0, fmt.Errorf("--seq-parallel=%d with --seq-method %s: no number between 1 and it divides it and the %d key/value heads of a device: "+
				"choose other numbers, or --seq-method %s", n, seqHybrid, keyHeads, seqRing)
		}
		return n / ulysses, ulysses, nil
	}
	return n, 1, nil
}

// largestBelow is the largest number below n that divides it and another.
func largestBelow(n, other int) int {
	for u := n / 2; u > 1; u-- {
		if n%u == 0 && other%u == 0 {
			return u
		}
	}
	return 1
}

// keyHeads are a device's key/value heads.
func (j *job) keyHeads() int {
	return max(1, cmp.Or(j.Model.KVHeads, j.Model.Heads)/max(1, j.Parallel.Tensor))
}
