package gpt

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/sequence"
	"github.com/shardbook/shardbook/lib/tensor"
)

// Parallel is a model that the devices of a mesh compute together: along one axis they share its layers, along others
// its sequences. A mesh axis of size 1 shares nothing. Its parameters, and their initial values, are those of the
// configuration on any number of devices; [Config.Rules] says which part of them a device has.
type Parallel struct {
	Config Config
	// Tensor is the devices that share layers: tensor parallelism, and with its Sequence Megatron's sequence
	// parallelism.
	Tensor tensor.Group
	// Sequence is the devices that share sequences, each of which has Config.Seq tokens. It goes with no Dropout, and
	// computes attention as Config.Flash does, whether that is set or not.
	Sequence sequence.Group
}

// Rules says how devices share the parameters of a model. Those that no rule names are whole on each. Query heads, and
// the perceptron's width, must be a multiple of the devices; key heads a multiple or a divisor. A vocabulary is padded.
func (c Config) Rules() tensor.Rules {
	d := c.headWidth()
	return tensor.Rules{
		{Name: "tok", Cut: tensor.Padded(0)},
		{Name: "head.w", Cut: tensor.Padded(1)},
		{Name: "h*.qkv.?", Cut: tensor.Heads(-1, c.Heads, c.kvHeads(), d)},
		{Name: "h*.o.w", Cut: tensor.Heads(0, c.Heads, 0, d)},
		{Name: "h*.up.?", Cut: tensor.Even(-1)},
		{Name: "h*.gate.?", Cut: tensor.Even(-1)},
		{Name: "h*.down.w", Cut: tensor.Even(0)},
	}
}

// Validate returns an error that says what is not valid, with its value and what to do.
func (m Parallel) Validate() error {
	if err := errors.Join(m.Config.Validate(), m.Sequence.Validate()); err != nil {
		return err
	}
	if len(m.Sequence.Axes()) > 0 {
		switch {
		case slices.Contains(m.Sequence.Axes(), m.Tensor.Axis):
			return fmt.Errorf("gpt: along mesh axis %q devices share layers and sequences: choose two axes", m.Tensor.Axis)
		case m.Config.Dropout > 0:
			return fmt.Errorf("gpt: Config.Dropout is %g and devices share sequences: their attention never holds the "+
				"weights that would be "+
				"dropped: leave one of them out", m.Config.Dropout)
		case m.Config.Matmul != (precision.Matmul{}):
			return errors.New("gpt: Config.Matmul sets how products are computed and devices share sequences, whose " +
				"attention computes them in float32: " +
				"leave one of them out")
		}
	}
	return nil
}

// Params lists the parameters of the whole model: [Config.Params].
func (m Parallel) Params() params.Tree { return m.Config.Params() }

// Init returns the initial values of the whole model: [Config.Init].
func (m Parallel) Init() ([]*tensors.Tensor, error) { return m.Config.Init() }

// MatmulPrecision is Config.MatmulPrecision.
func (m Parallel) MatmulPrecision() precision.Matmul { return m.Config.Matmul }

// Shares says what each device of a mesh with axes of these sizes has. It returns an error that names what the sizes do
// not divide, and for an axis that the mesh lacks.
func (m Parallel) Shares(size func(axis string) (int, error)) (s params.Shares, err error) {
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
	if s.Axis = m.Tensor.Axis; s.Axis == "" {
		return s, m.exchanges(size, 1)
	}
	if ranks, err = size(s.Axis); err != nil {
		return s, err
	}
	placement := m.Sequence.Placement
	if local := placement.Local(m.Config.Seq, tokens); m.Tensor.Sequence && local%ranks != 0 {
		return s, fmt.Errorf("gpt: Config.Seq is %d, of which a device has %d tokens, and %d devices that share "+
			"layers cannot have equal "+
			"parts of them: choose a multiple of %d", m.Config.Seq, local, ranks, placement.Local(1, 1)*tokens*ranks)
	}
	if s.Cuts, err = m.Config.Rules().Cuts(m.Config.Params(), ranks); err != nil {
		return s, err
	}
	return s, m.exchanges(size, ranks)
}

// exchanges returns an error if Ulysses cannot exchange heads that so many devices share for tokens.
func (m Parallel) exchanges(size func(axis string) (int, error), ranks int) error {
	if m.Sequence.Ulysses == "" {
		return nil
	}
	n, err := size(m.Sequence.Ulysses)
	if err != nil {
		return err
	}
	return sequence.Exchanges(m.Config.Heads/ranks, max(1, m.Config.kvHeads()/ranks), n)
}

// Loss is the device's share of the loss, from what it has of the parameters and from whole sequences (B,Seq): the mean
// over the devices that share sequences is [Config.Loss]. It panics as that does.
func (m Parallel) Loss(p params.Nodes, inputs, targets *graph.Node) *graph.Node {
	return m.NoisyLoss(p, inputs, targets, nil, nil)
}

// NoisyLoss is Loss with dropout: key and row are those of [Noise].
func (m Parallel) NoisyLoss(p params.Nodes, inputs, targets, key, row *graph.Node) *graph.Node {
	c := m.layers(inputs.Graph())
	var noise *Noise
	if key != nil {
		noise = &Noise{Key: key, Row: row}
	}
	return c.loss(c.stage(p, 0, c.Layers, c.local(inputs), noise), targets)
}

// layers leaves out groups of one device.
func (m Parallel) layers(g *graph.Graph) layers {
	c := m.Config.alone()
	if m.Tensor.Size(g) > 1 {
		c.tensor = m.Tensor
	}
	if axes := m.Sequence.Axes(); len(axes) > 0 && collective.AxisSize(g, axes...) > 1 {
		c.sequence = m.Sequence
	}
	return c
}
