package parallel

import (
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/train"
)

// stage builds the passes of one stage, as each device of a rank's mesh sees them. What a pass takes comes in an order that starts
// with what operands lists, and ends with what the passes before have left.
type stage struct {
	*own
	blocks []int // of the model
	params []int // of the stage, as places in own.tree
	// What forward and input leave for later passes, block by block, known once their graphs are built.
	keeps, leaves *record
}

// record is how many values each block leaves, and which of them are scalars, which devices return as vectors.
type record struct {
	counts  []int
	scalars []bool
}

// newStage lists a stage's parameters.
func (o *own) newStage(number int) *stage {
	s := &stage{own: o, blocks: o.Stages[number]}
	for _, b := range s.blocks {
		for _, at := range o.homes[b] {
			if !slices.Contains(s.params, at) {
				s.params = append(s.params, at)
			}
		}
	}
	return s
}

func (s *stage) first() bool { return s.blocks[0] == 0 }
func (s *stage) last() bool  { return s.blocks[len(s.blocks)-1] == len(s.model.Blocks)-1 }

// given is what all passes of a stage take.
type given struct {
	weights        []*graph.Node // in the order of stage.params
	x              *graph.Node
	targets        *graph.Node // of the last stage
	above          *graph.Node // of a backward pass: the gradient of the output, but of the last stage
	scaling        []*graph.Node
	key, deviceRow *graph.Node // the noise: that of the step, and the place of the device's first row
}

// take reads what passes take from the front of in.
func (s *stage) take(in []*graph.Node, backward bool) (g given, rest []*graph.Node) {
	n := len(s.params)
	g.weights, g.x, rest = in[:n], in[n], in[n+1:]
	if s.model.Noisy {
		before, row := rest[0], rest[1] // the number of steps, and the place of the micro-batch's first row
		rest = rest[2:]
		g.key = s.recipe.Key(before)
		rows := graph.Const(g.x.Graph(), uint32(g.x.Shape().Dim(0)))
		device := graph.ConvertDType(collective.Rank(g.x.Graph(), train.Axis), dtypes.Uint32)
		g.deviceRow = graph.Add(row, graph.Mul(device, rows))
	}
	if s.last() {
		g.targets, rest = rest[0], rest[1:]
	}
	if backward {
		if s.last() {
			n := len(s.policy.Scaling.States())
			g.scaling, rest = rest[:n], rest[n:]
		} else {
			g.above, rest = rest[0], rest[1:]
		}
	}
	return g, rest
}

// operands are a block's. Where ZeRO shards parameters they are gathered, once what they wait for is there.
func (s *stage) operands(g given, block int, x, wait *graph.Node) chain.Operands {
	o := chain.Operands{X: graph.Identity(graph.StopGradient(x)), Key: g.key, Row: g.deviceRow}
	places := s.homes[block]
	for _, at := range places {
		o.Weights = append(o.Weights, g.weights[slices.Index(s.params, at)])
	}
	if s.zero(3) {
		shards := precision.Cast(o.Weights, s.policy.Compute)
		for i, shard := range shards {
			shards[i] = graph.SchedulingBarrier(shard, wait)
		}
		o.Weights = s.gather(places, shards)
	}
	if block == len(s.model.Blocks)-1 {
		o.Targets = g.targets
	}
	return o
}

// forward returns the output, or in the last stage the loss, the mean over the micro-batch; and what is kept: of each block its
// input, but the first one's, which is the stage's, and what its backward pass needs.
func (s *stage) forward(in []*graph.Node) []*graph.Node {
	g, _ := s.take(in, false)
	x := g.x
	var kept [][]*graph.Node
	for k, b := range s.blocks {
		o := s.operands(g, b, x, x)
		y, of := s.passes.Forward(b, o)
		if k > 0 {
			of = append([]*graph.Node{x}, of...)
		}
		kept, x = append(kept, of), y
	}
	if s.last() {
		axes := s.averaged()
		x = graph.MulScalar(collective.AllReduce(x, collective.Sum, axes...), 1/float64(collective.AxisSize(x.Graph(), axes...)))
	}
	s.keeps = recordOf(kept)
	return append([]*graph.Node{x}, s.keeps.out(kept)...)
}

// backward takes the sums of the gradients so far, behind what operands lists, and what forward kept. It returns the gradient of the
// input, but in the first stage, and the sums with what the micro-batch adds.
func (s *stage) backward(in []*graph.Node) []*graph.Node {
	g, rest := s.take(in, true)
	sums, kept := newSums(s, rest), s.keeps.in(rest[len(s.params):])
	above := g.above
	for k := len(s.blocks) - 1; k >= 0; k-- {
		b := s.blocks[k]
		x, of := s.inputOf(g, k, kept[k])
		o := s.operands(g, b, x, waitFor(above, x))
		grads := s.passes.Backward(b, o, of, above, g.scaling)
		added := sums.add(b, grads.Weights)
		if above = grads.X; above != nil && added != nil && s.zero(2) {
			above = graph.SchedulingBarrier(above, added)
		}
	}
	if s.first() {
		return orZero(sums.out(), in)
	}
	return append([]*graph.Node{above}, sums.out()...)
}

// input is the part of backward that the stage before waits for: the gradient of the input. What it leaves is, of each block, the
// gradient of its output, but the last one's, and what the rest of its backward pass wants. The first stage has none.
func (s *stage) input(in []*graph.Node) []*graph.Node {
	g, rest := s.take(in, true)
	kept := s.keeps.in(rest)
	left := make([][]*graph.Node, len(s.blocks))
	above := g.above
	for k := len(s.blocks) - 1; k >= 0; k-- {
		b := s.blocks[k]
		x, of := s.inputOf(g, k, kept[k])
		o := s.operands(g, b, x, waitFor(above, x))
		if k < len(s.blocks)-1 {
			left[k] = append(left[k], above)
		}
		gx, later := s.passes.BackwardInput(b, o, of, above, g.scaling)
		left[k], above = append(left[k], later...), gx
	}
	s.leaves = recordOf(left)
	return append([]*graph.Node{above}, s.leaves.out(left)...)
}

// weightGrads is the rest of backward. It takes what backward does, and then what input left.
func (s *stage) weightGrads(in []*graph.Node) []*graph.Node {
	g, rest := s.take(in, true)
	sums, rest := newSums(s, rest), rest[len(s.params):]
	kept, left := s.keeps.in(rest), s.leaves.in(rest[len(s.keeps.scalars):])
	for k := len(s.blocks) - 1; k >= 0; k-- {
		b := s.blocks[k]
		x, of := s.inputOf(g, k, kept[k])
		above, later := g.above, left[k]
		if k < len(s.blocks)-1 {
			above, later = left[k][0], left[k][1:]
		}
		o := s.operands(g, b, x, waitFor(above, x))
		sums.add(b, s.passes.BackwardWeights(b, o, of, above, g.scaling, later))
	}
	return orZero(sums.out(), in)
}

// inputOf returns the input of the stage's block #k, and what is kept of it besides.
func (s *stage) inputOf(g given, k int, kept []*graph.Node) (x *graph.Node, rest []*graph.Node) {
	if k == 0 {
		return g.x, kept
	}
	return kept[0], kept[1:]
}

// waitFor is what a backward pass has last: the gradient from above, or in the last block the input.
func waitFor(above, x *graph.Node) *graph.Node {
	if above != nil {
		return above
	}
	return x
}

// orZero returns something where there is nothing, since a program must.
func orZero(out, in []*graph.Node) []*graph.Node {
	if len(out) > 0 {
		return out
	}
	return []*graph.Node{graph.Const(in[0].Graph(), []float32{0})}
}
