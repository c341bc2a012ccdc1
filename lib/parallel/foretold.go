package parallel

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gomlx/compute/dtypes"

	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/pipeline/schedule"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/sequence"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// Traffic is what a step sends, in bytes, before anything runs: what [Run.Traffic] measures after it, under the same names, of a
// Transformer that is shared as gpt.Parallel shares it, with rings in the placement sequence.Zigzag or sequence.Contiguous. The setup,
// the rows, the errors and how the model is cut into stages are those of [Layout.Estimate]. Sums of losses and norms are not counted,
// nor is what ZeRO and vocabularies are padded with. Of a rank with several stages each is taken to have the same number of blocks and
// of parameters.
func (l Layout) Traffic(s memest.Setup, rows int) (map[string]int64, error) {
	before := l
	before.ZeRO = 0
	own, err := before.Estimate(s, rows) // of a device
	if err != nil {
		return nil, err
	}
	before.Tensor, before.TensorSequence = 1, false
	whole, err := before.Estimate(s, rows) // of those that share layers, together
	if err != nil {
		return nil, err
	}
	order, err := l.schedule()
	if err != nil {
		return nil, err
	}
	l = l.whole()
	s.Seq = cmp.Or(s.Seq, s.Model.Context)
	most := map[string]int64{}
	for rank, stage := range own.Stages {
		f := foretold{Layout: l, setup: s, rows: int64(rows / (l.Replicas * l.Data * l.Microbatches)), schedule: order,
			policy: train.Recipe{Precision: s.Precision}.Policy(), stages: len(order.On(rank)), blocks: stage.Blocks, all: map[string]int64{}}
		f.params, f.whole = f.numbers(stage), f.numbers(whole.Stages[rank])
		for name, n := range f.rank(rank) {
			most[name] = max(most[name], n)
		}
	}
	return most, nil
}

// foretold counts what a rank sends in a step.
type foretold struct {
	Layout
	setup    memest.Setup
	policy   precision.Policy
	schedule schedule.Schedule
	rows     int64 // of a micro-batch, on a device
	stages   int   // of the rank
	blocks   int   // of the model's, in all of them
	params   int64 // of a device, before ZeRO
	whole    int64 // of all devices that share layers
	all      map[string]int64
}

// numbers is how many parameters a device has, as a ledger says it.
func (f foretold) numbers(s memest.Stage) int64 {
	return s.Of(memest.Parameters) / int64(f.policy.Compute.Size())
}

// rank counts the passes of a rank's schedule, and its update.
func (f foretold) rank(rank int) map[string]int64 {
	for _, a := range f.schedule.Ranks[rank] {
		first, last := a.Stage == 0, a.Stage == f.schedule.Stages-1
		switch a.Pass {
		case schedule.Forward:
			f.forward(first, last)
		case schedule.Backward:
			f.again(first, last)
			f.backward(first, last)
		case schedule.InputGrad:
			f.again(first, last)
			if !first { // which has all in the other part
				f.input(last)
			}
		case schedule.WeightGrad:
			if first {
				f.backward(first, last)
			} else {
				f.weights(last)
			}
		}
		if leaves(f.schedule, rank, a) {
			f.all[BetweenStages] += f.between() * int64(f.shards()) // whole, of all devices
		}
	}
	f.update(rank)
	return f.all
}

// forward is the forward pass of a stage for a micro-batch.
func (f foretold) forward(first, last bool) {
	f.gather(first, last, true)
	each, ends := 2, count(first) // an all-reduce behind attention, perceptron and embeddings,
	if f.TensorSequence {         // in two parts, and an all-gather before the head
		each, ends = 4, count(first)+count(last)
	}
	f.layers(each, ends)
	if last && f.Tensor > 1 { // the loss: of each token's logits the largest, the sum of the exponentials, the target's
		f.all[Tensor] += 3 * f.tokens() * int64(f.policy.Output.Size())
	}
	f.attention(true)
}

// backward is the whole backward pass.
func (f foretold) backward(first, last bool) {
	f.gather(first, last, !first)
	each, ends := 2, count(last)
	if f.TensorSequence { // which gathers once more what the forward pass has gathered
		each, ends = 6, count(first)+2*count(last)
	}
	f.layers(each, ends)
	f.attention(false)
	f.grads(first, last)
}

// input and weights are its two parts, which both gather: with TensorSequence four times more than the whole.
func (f foretold) input(last bool) {
	f.gather(false, last, true)
	each, ends := 2, count(last)
	if f.TensorSequence {
		each, ends = 4, 2*count(last)
	}
	f.layers(each, ends)
	f.attention(false)
}

func (f foretold) weights(last bool) {
	f.gather(false, last, true)
	if f.TensorSequence {
		f.layers(6, count(last))
	}
	f.grads(false, last)
}

// again is a forward pass that is made again.
func (f foretold) again(first, last bool) {
	if f.Recompute {
		f.forward(first, last)
	}
}

// grads is what becomes of a micro-batch's gradients.
func (f foretold) grads(first, last bool) {
	if f.TensorSequence { // those of parameters that are not cut are sums over all tokens
		copies := (f.params*int64(f.Tensor) - f.whole) / int64(f.Tensor-1)
		f.all[Tensor] += copies / int64(f.stages) * int64(f.policy.Compute.Size())
	}
	if f.ZeRO >= 2 {
		f.average(f.ofStage(first, last, true), f.policy.Reduce)
	}
}

// update is what follows a step's passes.
func (f foretold) update(rank int) {
	if f.ZeRO < 2 {
		f.average(f.params, f.policy.Reduce)
	}
	if f.ZeRO == 1 || f.ZeRO == 2 {
		f.average(f.params, f.policy.Compute) // the new parameters
	}
	holders, sum := f.schedule.Holders(), int64(f.policy.Reduce.Size())
	if f.Replicas > 1 {
		f.all[BetweenRanks] += f.whole * sum
	}
	of, last := f.schedule.On(rank), f.schedule.Stages-1
	switch {
	case len(holders[of[0]]) > 1:
		f.all[shared(holders[of[0]])] += f.whole * sum
	case f.setup.Model.Tied && slices.Contains(of, 0) != slices.Contains(of, last):
		f.all[shared(append(slices.Clone(holders[0]), holders[last]...))] += f.setup.Model.Params().Embeddings * sum
	}
}

// shared is the axis of ranks of a pipeline that have parameters in common.
func shared(ranks []int) string {
	slices.Sort(ranks)
	axis := "shared"
	for _, r := range ranks {
		axis += fmt.Sprint("-", r)
	}
	return axis
}

// leaves says whether an action of a rank of a pipeline makes something for a stage of another rank. The passes of a stage for a
// micro-batch are all on one rank.
func leaves(s schedule.Schedule, rank int, a schedule.Action) bool {
	to, ok := a.OutputTo(s.Stages)
	return ok && !slices.ContainsFunc(s.Ranks[rank], func(other schedule.Action) bool {
		return other.Stage == to && other.Microbatch == a.Microbatch
	})
}

// gather is what ZeRO 3 gathers for a pass; the backward pass of the embeddings needs none of them.
func (f foretold) gather(first, last, embeddings bool) {
	if f.ZeRO == 3 {
		f.average(f.ofStage(first, last, embeddings), f.policy.Compute)
	}
}

// ofStage is a device's parameters of one of the rank's stages. The head has those of the embeddings that it shares.
func (f foretold) ofStage(first, last, embeddings bool) int64 {
	p := f.setup.Model.Params()
	table := p.Embeddings / int64(f.Tensor)
	n := f.params / int64(f.stages)
	if first && !embeddings {
		n -= table + p.Positions
	}
	if first && last && f.setup.Model.Tied {
		n += table
	}
	return n
}

// average counts what has a number for each of so many parameters, between the devices with other rows or tokens.
func (f foretold) average(params int64, of dtypes.DType) {
	var axes []string
	for _, axis := range f.axes() {
		if axis.Size > 1 && axis.Name != Tensor {
			axes = append(axes, axis.Name)
		}
	}
	if len(axes) > 0 {
		f.all[strings.Join(axes, ",")] += params * int64(of.Size())
	}
}

// layers counts, between the devices that share layers, so many operations for each block of one of the rank's stages and so many
// besides, on what lies between blocks.
func (f foretold) layers(each, besides int) {
	if f.Tensor > 1 {
		f.all[Tensor] += int64(each*f.blocks/f.stages+besides) * f.between()
	}
}

// attention counts what devices that share sequences move for it.
func (f foretold) attention(forward bool) {
	m := f.setup.Model
	layer := sequence.Layer{Batch: int(f.rows), Tokens: f.setup.Seq, Heads: m.Heads / f.Tensor, KeyHeads: max(1, m.KV()/f.Tensor),
		Width: m.HeadDim(), Type: f.policy.Compute}
	moves, back := f.SequenceGroup(sequence.Zigzag).Traffic(layer, f.Ring, f.Ulysses)
	if !forward {
		moves = back
	}
	for _, move := range moves {
		axis := Ring
		if move.Kind == xla.AllToAll {
			axis = Ulysses
		}
		f.all[axis] += int64(f.blocks/f.stages) * move.Bytes
	}
}

// tokens are a device's of a micro-batch, and between the bytes of what lies between two blocks for them.
func (f foretold) tokens() int64 { return f.rows * int64(f.setup.Seq/(f.Ring*f.Ulysses)) }
func (f foretold) between() int64 {
	return f.tokens() * int64(f.setup.Model.Width) * int64(f.policy.Compute.Size())
}

func count(is bool) int {
	if is {
		return 1
	}
	return 0
}
