package gpt

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/sequence"
	"github.com/shardbook/shardbook/lib/tensor"
)

// Parallel is a model with tensor parallelism along one axis of a mesh and sequence (context) parallelism along others.
// An axis of size 1 splits nothing. Parameters and their initial values are those of Config on any number of devices;
// [Config.Rules] says which part of each parameter a device has.
type Parallel struct {
	Config Config
	// Tensor is the devices of tensor parallelism; its Sequence field adds Megatron's sequence parallelism.
	Tensor tensor.Group
	// Sequence is the devices of sequence (context) parallelism, over sequences of Config.Seq tokens. It does not
	// support Dropout, and computes attention as Config.Flash does, whether or not that is set.
	Sequence sequence.Group
	// Experts are the axes of expert parallelism: the devices along them have different experts and send each other
	// tokens. The first may be between ranks (collective.Between). Tensor.Axis is one of them if that group has several
	// devices.
	Experts []string
}

// Rules returns how tensor parallelism cuts the model's parameters; parameters without a rule are replicated. The
// number of devices must divide the query heads and the width of the MLP, and divide or be a multiple of the number of
// key heads. The vocabulary is padded.
func (c Config) Rules() tensor.Rules {
	d := c.headWidth()
	return tensor.Rules{
		{Name: "h*.experts.*", Cut: tensor.Whole}, // see Parallel.Experts
		{Name: "tok", Cut: tensor.Padded(0)},
		{Name: "head.w", Cut: tensor.Padded(1)},
		{Name: "h*.qkv.?", Cut: tensor.Heads(-1, c.Heads, c.kvHeads(), d)},
		{Name: "h*.o.w", Cut: tensor.Heads(0, c.Heads, 0, d)},
		{Name: "h*.up.?", Cut: tensor.Even(-1)},
		{Name: "h*.gate.?", Cut: tensor.Even(-1)},
		{Name: "h*.down.w", Cut: tensor.Even(0)},
	}
}

// Validate returns an error that names what is invalid, with its value and what to do.
func (m Parallel) Validate() error {
	if err := errors.Join(m.Config.Validate(), m.Sequence.Validate()); err != nil {
		return err
	}
	if len(m.Sequence.Axes()) > 0 {
		switch {
		case slices.Contains(m.Sequence.Axes(), m.Tensor.Axis):
			return fmt.Errorf("gpt: mesh axis %q is used for tensor and for sequence parallelism: choose two axes",
				m.Tensor.Axis)
		case m.Config.Dropout > 0:
			return fmt.Errorf("gpt: Config.Dropout is %g with sequence parallelism, which does not support dropout of "+
				"attention weights: unset one of the two", m.Config.Dropout)
		case m.Config.Matmul != (precision.Matmul{}):
			return errors.New("gpt: Config.Matmul is set with sequence parallelism, which computes matmuls of " +
				"attention in float32: unset one of the two")
		case m.Config.Experts.Capacity > 0:
			return fmt.Errorf("gpt: Config.Experts.Capacity is %g with sequence parallelism, whose devices do not have "+
				"the tokens in order: unset one of the two", m.Config.Experts.Capacity)
		}
	}
	return nil
}

// Params lists the parameters of the full model: [Config.Params].
func (m Parallel) Params() params.Tree { return m.Config.Params() }

// Init returns the initial values of the full model: [Config.Init].
func (m Parallel) Init() ([]*tensors.Tensor, error) { return m.Config.Init() }

// BufferNames lists the parameters that are buffers: [Config.BufferNames].
func (m Parallel) BufferNames() []string { return m.Config.BufferNames() }

// MatmulPrecision returns the precision of the model's matmuls.
func (m Parallel) MatmulPrecision() precision.Matmul { return m.Config.Matmul }

// Shards returns the shards that each device of a mesh with axes of these sizes has. It returns an error that names
// what a size does not divide, or an axis that the mesh lacks.
func (m Parallel) Shards(size func(axis string) (int, error)) (s params.Shards, err error) {
	if err := m.Validate(); err != nil {
		return s, err
	}
	s.Tokens = m.Sequence.Axes()
	ranks, tokens := 1, 1
	for _, axis := range s.Tokens {
		n, err := size(axis)
		if err != nil {
			return s, err
		}
		tokens *= n
	}
	s.Between = s.Tokens
	if m.Tensor.Sequence {
		s.Between = append(slices.Clone(s.Tokens), m.Tensor.Axis)
	}
	if s.Axis = m.Tensor.Axis; s.Axis != "" {
		if ranks, err = size(s.Axis); err != nil {
			return s, err
		}
	}
	placement, mixture := m.Sequence.Placement, m.Config.mixture()
	if local := placement.Local(m.Config.Seq, tokens); (mixture || m.Tensor.Sequence) && local%ranks != 0 ||
		mixture && local*tokens > m.Config.Seq {
		return s, fmt.Errorf("gpt: Config.Seq is %d, of which a device has %d tokens, which %d devices of tensor "+
			"parallelism cannot split equally: choose a multiple of %d", m.Config.Seq, local, ranks,
			placement.Local(1, 1)*tokens*ranks)
	}
	if s.Cuts, err = m.Config.Rules().Cuts(m.Config.Params(), ranks); err != nil {
		return s, err
	}
	if err := m.cutExperts(&s, size); err != nil {
		return s, err
	}
	return s, m.checkUlysses(size, ranks)
}

// cutExperts adds the cuts of experts.
func (m Parallel) cutExperts(s *params.Shards, size func(axis string) (int, error)) error {
	if !m.Config.mixture() {
		return nil
	}
	n := 1
	for _, axis := range m.Experts {
		along, err := size(axis)
		if err != nil {
			return err
		}
		if n *= along; axis != s.Axis && along > 1 {
			s.Experts = axis
		}
	}
	switch {
	case s.Axis != "" && !slices.Contains(m.Experts, s.Axis):
		return fmt.Errorf("gpt: Parallel.Experts is %q, without the axis %q of tensor parallelism, whose devices have "+
			"different experts too: add it", m.Experts, s.Axis)
	case m.Config.Experts.Experts%n != 0:
		return fmt.Errorf("gpt: Config.Experts.Experts is %d, and %d devices along %q have different experts: choose a "+
			"multiple", m.Config.Experts.Experts, n, m.Experts)
	case n == 1:
		return nil
	}
	*s = s.Placed()
	for i, p := range m.Config.Params() {
		if !strings.Contains(p.Name, ".experts.") {
			continue
		}
		cut, err := params.EvenCut(0, p.Shape.Dim(0), n, false)
		if err != nil {
			return err
		}
		cut.Along, s.Cuts[i] = m.Experts, cut
	}
	return nil
}

// checkUlysses returns an error if Ulysses cannot split the heads of a rank of tensor parallelism over its devices.
func (m Parallel) checkUlysses(size func(axis string) (int, error), ranks int) error {
	if m.Sequence.Ulysses == "" {
		return nil
	}
	n, err := size(m.Sequence.Ulysses)
	if err != nil {
		return err
	}
	return sequence.Exchanges(m.Config.Heads/ranks, max(1, m.Config.kvHeads()/ranks), n)
}

// Loss is the device's part of the loss, from its shards of the parameters and from full sequences (B,Seq): the mean
// over the devices of sequence parallelism is [Config.Loss]. It panics as that does.
func (m Parallel) Loss(p params.Nodes, inputs, targets *graph.Node) *graph.Node {
	return m.NoisyLoss(p, inputs, targets, nil, nil)
}

// NoisyLoss is Loss with dropout: see [Noise] for key and row.
func (m Parallel) NoisyLoss(p params.Nodes, inputs, targets, key, row *graph.Node) *graph.Node {
	c := m.layers(inputs.Graph())
	var noise *Noise
	if key != nil {
		noise = &Noise{Key: key, Row: row}
	}
	return c.fullLoss(p, c.local(inputs), targets, noise)
}

// layers returns the layers of a device; groups of one device are left out.
func (m Parallel) layers(g *graph.Graph) layers {
	c := m.Config.oneDevice()
	if m.Tensor.Size(g) > 1 {
		c.tensor = m.Tensor
	}
	if axes := m.Sequence.Axes(); len(axes) > 0 && collective.AxisSize(g, axes...) > 1 {
		c.sequence = m.Sequence
	}
	for _, axis := range m.Experts {
		if collective.AxisSize(g, axis) > 1 {
			c.expertAxes = append(c.expertAxes, axis)
		}
	}
	return c
}

// layers are the layers of a model as one device computes them, with its groups of tensor and sequence parallelism. The
// groups' zero values are one device, for which they do nothing. Otherwise T, H, K and V in shapes are the device's
// number of tokens, of heads and of vocabulary entries.
type layers struct {
	Config
	tensor     tensor.Group
	sequence   sequence.Group
	expertAxes []string
}

func (c Config) oneDevice() layers { return layers{Config: c} }

// columns is [Config.Linear] at several paths, column-parallel: tensor parallelism splits the outputs.
func (c layers) columns(p params.Nodes, x *graph.Node, paths ...string) []*graph.Node {
	var ws []*graph.Node
	for _, at := range paths {
		ws = append(ws, p.Get(at+".w"))
	}
	ys := c.tensor.Columns(x, ws, c.saving(c.Compress))
	for i, at := range paths {
		ys[i] = c.biased(p, at, ys[i])
	}
	return ys
}

// rows is [Config.Linear], row-parallel: tensor parallelism splits the inputs. It saves x in a codec.
func (c layers) rows(p params.Nodes, at string, x *graph.Node, codec string) *graph.Node {
	return c.biased(p, at, c.tensor.Rows(x, p.Get(at+".w"), c.saving(codec)))
}

// sharded returns the parameters, of which those at or below paths are prepared for tensor parallelism: parameters that
// several devices have sum their gradients.
func (c layers) sharded(g *graph.Graph, p params.Nodes, paths ...string) params.Nodes {
	if c.tensor.Alone() {
		return p
	}
	tree, err := c.Params().Under(paths...)
	if err != nil {
		panic(err)
	}
	cuts, err := c.Rules().Cuts(tree, c.tensor.Size(g))
	if err != nil {
		panic(err)
	}
	p = maps.Clone(p)
	var names []string
	var full []*graph.Node
	for i, s := range tree {
		switch {
		case strings.Contains(s.Name, ".experts."): // each device has its own
		case cuts[i] == nil && !c.tensor.Sequence && usedInParts(s.Name):
			p[s.Name] = collective.F(p.Get(s.Name), c.tensor.Axis)
		case cuts[i] == nil:
			names, full = append(names, s.Name), append(full, p.Get(s.Name))
		default:
			p[s.Name] = c.tensor.SumCopies(p.Get(s.Name), cuts[i].Axis, cuts[i])
		}
	}
	for i, node := range c.tensor.Replicated(full) {
		p[names[i]] = node
	}
	return p
}

// usedInParts reports whether each tensor-parallel device uses a parameter, which all have, for its own tokens or
// heads.
func usedInParts(name string) bool {
	return strings.Contains(name, ".router.") || strings.Contains(name, ".qnorm.") || strings.Contains(name, ".knorm.")
}

func (c layers) contextParallel() bool { return len(c.sequence.Axes()) > 0 }

// hasAllTokens says whether the device has all tokens between layers.
func (c layers) hasAllTokens() bool { return !c.contextParallel() && !c.tensor.Sequence }

// positions returns the positions of the device's t tokens within layers: a vector of int32. Padding has Seq or more.
func (c layers) positions(g *graph.Graph, t int) *graph.Node {
	if c.contextParallel() {
		return c.sequence.Positions(g, c.Seq)
	}
	return graph.Iota(g, shapes.Make(dtypes.Int32, t), 0)
}

// tokenPositions returns the positions of the device's tokens between layers, if it has t within them.
func (c layers) tokenPositions(g *graph.Graph, t int) *graph.Node {
	return c.tensor.Tokens(c.positions(g, t), 0)
}

// longest is the largest number of tokens of a sequence that a device may have, including padding.
func (c layers) longest(g *graph.Graph) int {
	if c.contextParallel() {
		return c.sequence.Local(g, c.Seq)
	}
	return c.Seq
}

// heads returns how many query heads, and how many key/value heads, a device has.
func (c layers) heads(g *graph.Graph) (queries, keys int) {
	n := c.tensor.Size(g)
	return c.Heads / n, max(1, c.kvHeads()/n)
}

// headIndices returns the indices of the device's key heads, and of its query heads within those of a key head: vectors
// of int32.
func (c layers) headIndices(g *graph.Graph) (keys, queries *graph.Node) {
	rank, ranks := c.tensor.Rank(g), c.tensor.Size(g)
	ownQueries, ownKeys := c.heads(g)
	run := func(first *graph.Node, n int) *graph.Node {
		return graph.Add(graph.Iota(g, shapes.Make(dtypes.Int32, n), 0), first)
	}
	if sharing := ranks / c.kvHeads(); sharing > 1 { // this number of devices have the same key head
		within := graph.Mod(rank, graph.Const(g, int32(sharing)))
		return run(graph.Div(rank, graph.Const(g, int32(sharing))), 1),
			run(graph.MulScalar(within, ownQueries), ownQueries)
	}
	return run(graph.MulScalar(rank, ownKeys), ownKeys), run(graph.Const(g, int32(0)), ownQueries/ownKeys)
}

// local returns the device's part of the tokens (B,Seq).
func (c layers) local(tokens *graph.Node) *graph.Node {
	if !c.contextParallel() {
		return tokens
	}
	if tokens.Rank() != 2 || tokens.Shape().Dim(1) != c.Seq {
		panic(fmt.Errorf("gpt: tokens have shape %s: with sequence parallelism use (B,T) with T = Config.Seq %d",
			tokens.Shape(), c.Seq))
	}
	return c.sequence.Take(tokens, 1)
}

// loss is the device's part of the mean [CrossEntropy] of its logits (B,T,V) and the targets (B,Seq): the mean over the
// devices that have the other tokens of the same sequences is the mean over all tokens.
func (c layers) loss(logits, targets *graph.Node) *graph.Node {
	each := c.tensor.CrossEntropy(logits, c.local(targets), c.Vocab) // (B,T)
	if !c.contextParallel() {
		return graph.ReduceAllMean(each)
	}
	n, local := each.Shape().Dim(0), each.Shape().Dim(1)
	g := logits.Graph()
	ranks := collective.AxisSize(g, c.sequence.Axes()...)
	if local*ranks > c.Seq { // there is padding
		real := graph.ExpandAndBroadcast(c.sequence.Real(g, c.Seq), []int{n, local}, []int{0})
		each = graph.Where(real, each, graph.ZerosLike(each))
	}
	return graph.MulScalar(graph.ReduceAllSum(each), float64(ranks)/float64(n*c.Seq))
}
