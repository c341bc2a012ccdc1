package parallel

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gomlx/compute/dtypes"

	"github.com/shardbook/shardbook/internal/engine"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/cost"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/sequence"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// Traffic predicts the bytes that a step sends, under the names of a trainer's Traffic, which measures them. The model
// is a Transformer sharded as by gpt.Parallel, with rings in the placement sequence.Zigzag or sequence.Contiguous. The
// arguments and errors are those of [Layout.Estimate]. Reductions of losses and norms are not counted. Parameters,
// gradients and messages are counted by the layout's plan ([step.Plan.Traffic]), communication within blocks block by
// block.
//
// Of a mixture of experts it counts the tokens that leave a device with balanced routing, in which all experts have
// equally many: how many do depends on the router. A trainer counts arrays that have room for the most. The loads of
// experts are not counted.
func (l Layout) Traffic(s memest.Setup, rows int) (map[string]int64, error) {
	if _, err := l.Estimate(s, rows); err != nil {
		return nil, err
	}
	micro, err := l.MicroBatch(rows)
	if err != nil {
		return nil, err
	}
	l = l.withDefaults()
	s.Seq = cmp.Or(s.Seq, s.Model.Context)
	f := predicted{Layout: l, setup: s, rows: int64(micro),
		policy: train.Recipe{Precision: s.Precision}.Policy()}
	f.list()
	one, of := engine.Serial(f.model, l.Microbatches)
	plans, members, _, err := l.compose(train.Recipe{Model: f.model, Precision: s.Precision}, one, of,
		params.Shards{Tokens: f.tokens(), Cuts: f.cuts()})
	if err != nil {
		return nil, err
	}
	p := plans[len(plans)-1]
	device, rank := f.sizes(p, members)
	own, err := p.Traffic(device)
	if err != nil {
		return nil, err
	}
	between, err := p.Traffic(rank)
	if err != nil {
		return nil, err
	}
	most := map[string]int64{}
	for r, list := range p.Ranks {
		f.all = map[string]int64{}
		for axis, n := range between[r] {
			if a, ok := p.Axis(axis); !ok || len(a.Groups) > 0 {
				f.all[axis] += n
			} else if name := f.named(axis); name != "" {
				f.all[name] += own[r][axis] - f.unused(p, list, device, axis)
			}
		}
		passes := slices.DeleteFunc(slices.Clone(list), func(op step.Op) bool { return !op.Kind.Pass() })
		for i, op := range passes {
			f.pass(op, len(p.Blocks)-1, slices.ContainsFunc(passes[i+1:], func(later step.Op) bool {
				return later.Block == op.Block+1 && later.Micro == op.Micro
			}))
		}
		for name, n := range maps.All(f.all) {
			most[name] = max(most[name], n)
		}
	}
	return most, nil
}

// predicted counts what a rank sends in a step.
type predicted struct {
	Layout
	setup  memest.Setup
	policy precision.Policy
	rows   int64 // of a micro-batch, on a device
	model  chain.Model
	own    map[string]int64 // parameters by name, on a device
	times  map[string]int64 // parameters by name: how many devices of a rank have different parts
	all    map[string]int64
}

// list builds the chain of a Transformer's blocks.
func (f *predicted) list() {
	f.own, f.times = map[string]int64{}, map[string]int64{}
	blocks := []chain.Block{{Name: "embed"}}
	for i := range f.setup.Model.Layers {
		blocks = append(blocks, chain.Block{Name: fmt.Sprint("h", i)})
	}
	blocks = append(blocks, chain.Block{Name: "head"})
	add := func(block int, name string, t cost.Tensor) {
		f.own[name], f.times[name] = f.part(t)
		blocks[block].Params = append(blocks[block].Params, params.New(name, dtypes.Float32, int(f.own[name])))
	}
	for _, t := range f.setup.Model.Tensors() {
		switch t.Part {
		case cost.Embedding, cost.Position:
			if add(0, t.Name, t); t.Part == cost.Embedding && f.setup.Model.Tied {
				add(len(blocks)-1, t.Name, t)
			}
		case cost.LastNorm, cost.Head:
			add(len(blocks)-1, t.Name, t)
		default:
			for i := range f.setup.Model.Layers {
				if f.has(i, t.Part) {
					add(1+i, fmt.Sprint(t.Name, i), t)
				}
			}
		}
	}
	f.model = chain.Model{Blocks: blocks}
}

// has reports whether a block has a part of the model.
func (f *predicted) has(block int, part cost.Part) bool {
	switch part {
	case cost.MLP:
		return !f.routes(block)
	case cost.Router, cost.Routed, cost.Shared:
		return f.routes(block)
	}
	return true
}

// routes reports whether a block has experts.
func (f *predicted) routes(block int) bool {
	m := f.setup.Model
	return block >= m.Layers-m.ExpertLayers() && block < m.Layers
}

// part returns the number of elements of a parameter on a device, and the number of a rank's devices with different
// parts (Shoeybi et al. 2019, §3).
func (f *predicted) part(t cost.Tensor) (n, times int64) {
	m, ranks := f.setup.Model, int64(f.Tensor)
	last := int64(t.Dims[len(t.Dims)-1])
	switch t.Name {
	case "tok":
		return (int64(t.Dims[0]) + ranks - 1) / ranks * last, ranks
	case "head.w":
		return int64(t.Dims[0]) * ((last + ranks - 1) / ranks), ranks
	case "h.qkv.w", "h.qkv.b":
		return t.Size() / last * int64((m.Heads/f.Tensor+2*max(1, m.KV()/f.Tensor))*m.HeadDim()), ranks
	case "h.gate.w", "h.gate.b", "h.up.w", "h.up.b", "h.o.w", "h.down.w", "h.shared.gate.w", "h.shared.gate.b",
		"h.shared.up.w", "h.shared.up.b", "h.shared.down.w":
		return t.Size() / ranks, ranks
	}
	if t.Part == cost.Routed {
		return t.Size() / (ranks * int64(f.Expert)), ranks * int64(f.expertDevices())
	}
	return t.Size(), 1
}

// cuts says which parameters are experts, for compose.
func (f *predicted) cuts() (cuts []*params.Cut) {
	for _, s := range f.model.Params() {
		var cut *params.Cut
		if strings.Contains(s.Name, ".experts.") {
			cut = &params.Cut{Along: f.Experts()}
		}
		cuts = append(cuts, cut)
	}
	return cuts
}

// tokens are the axes along which devices have different tokens.
func (f *predicted) tokens() (axes []string) {
	for name, n := range map[string]int{Ring: f.ring(), Ulysses: f.Ulysses} {
		if n > 1 {
			axes = append(axes, name)
		}
	}
	return axes
}

// named is the name of an axis for the compiler's collectives, without axes of one device.
func (f *predicted) named(axis string) string {
	var names []string
	for _, a := range f.axes() {
		for _, name := range strings.Split(axis, "+") {
			if a.Name == name && a.Size > 1 {
				names = append(names, name)
			}
		}
	}
	return strings.Join(names, ",")
}

// sizes returns the sizes of a plan's values on one device and on all devices of a rank.
func (f *predicted) sizes(p *step.Plan, members [][]int) (device, rank step.Sizes) {
	tree := f.model.Params()
	for u, list := range members {
		n, times, shards := int64(0), int64(1), int64(1)
		if p.Units[u].Shard != "" {
			a, _ := p.Axis(p.Units[u].Shard)
			shards = int64(a.Size)
		}
		for _, at := range list {
			name := tree[at].Name
			n, times = n+(f.own[name]+shards-1)/shards*shards, max(times, f.times[name])
		}
		compute, reduce := n*int64(f.policy.Compute.Size()), n*int64(f.policy.Reduce.Size())
		device.Full, device.Sum = append(device.Full, compute), append(device.Sum, reduce)
		device.Reduced = append(device.Reduced, reduce/shards)
		rank.Full, rank.Sum = append(rank.Full, compute*times), append(rank.Sum, reduce*times)
		left := reduce * times
		if len(p.Units[u].Reduce) > 0 {
			if a, _ := p.Axis(p.Units[u].Shard); len(a.Groups) > 0 {
				left /= shards
			}
		}
		rank.Reduced = append(rank.Reduced, left)
	}
	rank.Input = []int64{f.message() * int64(f.shards())}
	device.Input = []int64{f.message()}
	return device, rank
}

// unused is the bytes of the embeddings that would be gathered along an axis only for their backward pass, which does
// not need them: the compiler removes that gather.
func (f *predicted) unused(p *step.Plan, list []step.Op, of step.Sizes, axis string) (bytes int64) {
	used := map[int]bool{}
	for _, op := range list {
		switch {
		case op.Kind == step.Forward || op.Kind == step.Recompute || op.Kind.Pass() && op.Block > 0:
			for _, u := range p.Blocks[op.Block].Units {
				used[u] = true
			}
		case op.What != step.Parameters || p.Units[op.Unit].Shard != axis:
		case op.Kind == step.Gather:
			used[op.Unit] = false
		case op.Kind == step.Free && !used[op.Unit]:
			bytes += of.Full[op.Unit]
		}
	}
	return bytes
}

// pass counts what a pass of a block sends between tensor-, sequence- and expert-parallel devices. needed is false if
// no later pass of the rank uses its output.
func (f *predicted) pass(op step.Op, last int, needed bool) {
	first, layer, end := op.Block == 0, op.Block > 0 && op.Block < last, op.Block == last
	switch op.Kind {
	case step.Forward, step.Recompute:
		each, ends := f.each(op.Block, 2, 4), count(first) // an all-reduce after attention, MLP and embeddings,
		if f.TensorSequence {                              // in two parts, and an all-gather before the head
			ends += count(end)
		}
		unneeded := op.Kind == step.Recompute && !needed
		if unneeded {
			each, ends = max(0, each-1), 0
		}
		f.layers(each*count(layer) + ends)
		if end && f.TensorSequence { // gathers the column for the losses of experts
			f.all[Tensor] += f.message() - f.between()
		}
		// The loss exchanges for each token the largest logit, the sum of exponentials and the target's logit.
		if end && f.Tensor > 1 {
			f.all[Tensor] += 3 * f.tokensOf() * int64(f.policy.Output.Size())
		}
		f.attention(layer, true)
		f.experts(op.Block, true, !unneeded)
	case step.Backward:
		f.backward(op.Block, first, layer, end)
	case step.InputGrad:
		if first { // which has all in the other part
			return
		}
		ends := count(end)
		if f.TensorSequence {
			ends *= 2
		}
		f.layers(f.each(op.Block, 2, 4)*count(layer) + ends)
		f.attention(layer, false)
		f.experts(op.Block, false, true)
	case step.WeightGrad:
		if first {
			f.backward(op.Block, first, layer, end)
			return
		}
		if f.TensorSequence {
			f.layers(f.each(op.Block, 6, 6)*count(layer) + count(end))
		}
		f.experts(op.Block, false, false) // once more, since the part for the inputs does not keep what it was sent
		f.copies(op.Block)
	}
}

// each is the number of operations of a layer between tensor-parallel devices. usual is that of attention and an MLP,
// and sequence the same with TensorSequence. The results of experts take one, or with TensorSequence none, and those of
// shared experts are an MLP's.
func (f *predicted) each(block, usual, sequence int) int {
	shared := count(f.setup.Model.SharedExperts > 0)
	switch routes := f.routes(block - 1); {
	case !routes && f.TensorSequence:
		return sequence
	case !routes:
		return usual
	case f.TensorSequence:
		return sequence / 2 * (1 + shared)
	}
	return usual + usual/2*shared
}

// backward counts an unsplit backward pass of a block.
func (f *predicted) backward(block int, first, layer, end bool) {
	ends := count(end)
	if f.TensorSequence { // which repeats the all-gathers of the forward pass
		ends = count(first) + 2*count(end)
	}
	f.layers(f.each(block, 2, 6)*count(layer) + ends)
	f.attention(layer, false)
	f.experts(block, false, true)
	f.copies(block)
}

// copies counts the all-reduce of gradients of replicated parameters that each tensor-parallel device uses for other
// tokens, as all with TensorSequence, or for other heads.
func (f *predicted) copies(block int) {
	if f.Tensor == 1 {
		return
	}
	for _, s := range f.model.Blocks[block].Params {
		parts := strings.Contains(s.Name, ".router.") || strings.Contains(s.Name, "norm.")
		if f.times[s.Name] == 1 && (f.TensorSequence || parts) {
			f.all[Tensor] += f.own[s.Name] * int64(f.policy.Compute.Size())
		}
	}
}

// experts counts the tokens that a device sends to the devices of their experts, and back if they are needed, with
// balanced routing: of its tokens' choices all but one in as many as there are devices. In the forward pass, they are
// preceded by their number for each expert.
func (f *predicted) experts(block int, forward, back bool) {
	n := int64(f.Expert * f.Tensor)
	if n == 1 || !f.routes(block-1) {
		return
	}
	axes := f.named(strings.Join(f.Experts(), "+"))
	if f.expertRanks() > 1 {
		axes = Expert
	}
	m := f.setup.Model
	rows := f.tokensOf() / int64(f.Tensor) * int64(m.ExpertsPerToken*(1+count(back)))
	f.all[axes] += rows * (n - 1) * int64(m.Width*f.policy.Compute.Size()) / n
	if forward {
		f.all[axes] += int64(m.Experts) / n * (n - 1) * 4 // the way back has the same ones
	}
	if f.Tensor > 1 && !f.TensorSequence && forward { // the losses of each token
		f.all[Tensor] += f.tokensOf() * int64(f.policy.Compute.Size())
	}
}

// layers counts n operations between tensor-parallel devices on the activations between blocks.
func (f *predicted) layers(n int) {
	if f.Tensor > 1 {
		f.all[Tensor] += int64(n) * f.between()
	}
}

// attention counts what sequence-parallel devices send for the attention of a layer.
func (f *predicted) attention(layer, forward bool) {
	if !layer {
		return
	}
	m := f.setup.Model
	moves, back := f.SequenceGroup(sequence.Zigzag).Traffic(sequence.Layer{Batch: int(f.rows), Tokens: f.setup.Seq,
		Heads:    m.Heads / f.Tensor,
		KeyHeads: max(1, m.KV()/f.Tensor), Width: m.HeadDim(), Type: f.policy.Compute}, f.Ring, f.Ulysses)
	if !forward {
		moves = back
	}
	for _, move := range moves {
		axis, times := Ring, 1
		if move.Kind == xla.AllToAll {
			axis = Ulysses
		} else if f.RingRanks {
			times = f.PerRank()
		}
		f.all[axis] += move.Bytes * int64(times)
	}
}

// tokensOf is the tokens of a micro-batch on a device, between the bytes of their activations between two blocks, and
// message those with the column for the losses of experts.
func (f *predicted) tokensOf() int64 { return f.rows * int64(f.setup.Seq/(f.Ring*f.Ulysses)) }
func (f *predicted) between() int64 {
	return f.tokensOf() * int64(f.setup.Model.Width) * int64(f.policy.Compute.Size())
}
func (f *predicted) message() int64 {
	return f.between() + f.tokensOf()*int64(count(f.setup.Model.Experts > 0)*f.policy.Compute.Size())
}

func count(is bool) int {
	if is {
		return 1
	}
	return 0
}
