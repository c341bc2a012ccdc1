// Package chain describes a model as a chain of blocks, so that techniques such as pipelines, ZeRO and recomputation
// can run it block by block: each block is a graph function of its parameters and of the output of the block before. It
// also builds the forward and backward pass of each block.
package chain

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
)

// Block is a piece of a model.
type Block struct {
	Name string // unique in the model
	// Kind, if not "", says that all blocks of this kind are the same function of parameters of the same shapes in the
	// same order, whatever their names. Such blocks share their compiled programs, so a deep model compiles as fast as
	// a shallow one. Training refuses blocks of one kind that differ ([Kinds]).
	Kind string
	// Params lists the parameters. Blocks whose lists contain the same name share that parameter.
	Params params.Tree
	// Apply builds the block's graph: x is the output of the block before, or the model's inputs. A block with noise,
	// such as dropout, derives it from key and row, as a train.Noisy model does; both nil for no noise.
	Apply func(p params.Nodes, x, key, row *graph.Node) *graph.Node
	// Loss is for a last block whose loss has parameters or is computed with the block: it takes the arguments of Apply
	// and the targets, and returns the mean loss over a batch. It replaces Apply and [Model.Criterion].
	Loss func(p params.Nodes, x, targets, key, row *graph.Node) *graph.Node
}

// Model is a chain of blocks. It is a train.Model, train.Noisy and train.Buffered.
type Model struct {
	Blocks []Block
	// Criterion returns the mean loss over a batch, a scalar, from the last block's output and the targets; nil if that
	// block has a Loss.
	Criterion func(y, targets *graph.Node) *graph.Node
	// Initial returns the initial values of the parameters, in the order of [Model.Params].
	Initial func() ([]*tensors.Tensor, error)
	// Matmul says how the blocks compute matmuls; the zero value is in the type of the operands.
	Matmul precision.Matmul
	// Noisy says that blocks use a noise key.
	Noisy bool
	// Buffers are the names of parameters that are buffers, not weights: see train.Buffered.
	Buffers []string
	// Check, if not nil, returns an error for a batch that the model cannot take: see train.Checker.
	Check func(inputs, targets *tensors.Tensor) error
}

// Params lists the parameters of all blocks in the order of the chain. A shared one is listed with its first block.
func (m Model) Params() params.Tree {
	var tree params.Tree
	seen := map[string]bool{}
	for _, b := range m.Blocks {
		for _, s := range b.Params {
			if !seen[s.Name] {
				tree = append(tree, s)
			}
			seen[s.Name] = true
		}
	}
	return tree
}

// Init returns the initial values of the parameters.
func (m Model) Init() ([]*tensors.Tensor, error) { return m.Initial() }

// Loss builds the loss of the model as one graph, without noise.
func (m Model) Loss(p params.Nodes, inputs, targets *graph.Node) *graph.Node {
	return m.NoisyLoss(p, inputs, targets, nil, nil)
}

// NoisyLoss builds the loss of the model as one graph.
func (m Model) NoisyLoss(p params.Nodes, inputs, targets, key, row *graph.Node) *graph.Node {
	x, last := inputs, len(m.Blocks)-1
	for i := range last {
		x = m.apply(i, p, x, key, row)
	}
	return m.end(p, x, targets, key, row)
}

// apply is a block's Apply, whose panic names the block.
func (m Model) apply(i int, p params.Nodes, x, key, row *graph.Node) *graph.Node {
	defer rethrow(fmt.Sprintf("block %q", m.Blocks[i].Name))
	return m.Blocks[i].Apply(p, x, key, row)
}

// rethrow adds to a panic where it comes from.
func rethrow(whose string) {
	switch by := recover().(type) {
	case nil:
	case error:
		panic(fmt.Errorf("%s: %w", whose, by))
	default:
		panic(fmt.Errorf("%s: %v", whose, by))
	}
}

// end is the last block with the loss. It panics if the loss is not a float scalar.
func (m Model) end(p params.Nodes, x, targets, key, row *graph.Node) (loss *graph.Node) {
	loss = m.loss(p, x, targets, key, row)
	if !loss.IsScalar() || !loss.DType().IsFloat() {
		panic(fmt.Errorf("chain: the loss has shape %s, want a float scalar: return the mean (graph.ReduceAllMean)",
			loss.Shape()))
	}
	return loss
}

func (m Model) loss(p params.Nodes, x, targets, key, row *graph.Node) *graph.Node {
	last := len(m.Blocks) - 1
	if b := m.Blocks[last]; b.Loss != nil {
		defer rethrow(fmt.Sprintf("block %q", b.Name))
		return b.Loss(p, x, targets, key, row)
	}
	y := m.apply(last, p, x, key, row)
	defer rethrow("the criterion")
	return m.Criterion(y, targets)
}

// CheckBatch implements train.Checker with [Model.Check].
func (m Model) CheckBatch(inputs, targets *tensors.Tensor) error {
	if m.Check == nil {
		return nil
	}
	return m.Check(inputs, targets)
}

// BufferNames implements train.Buffered with [Model.Buffers].
func (m Model) BufferNames() []string { return m.Buffers }

// Chain returns the model itself, or the error of Validate, so that [Of] accepts it.
func (m Model) Chain() (Model, error) { return m, m.Validate() }

// chained is a model that can return itself as a chain, such as gpt.Config.
type chained interface {
	Chain() (Model, error)
}

// plainModel is the part of a train.Model that a chain of one block needs.
type plainModel interface {
	Params() params.Tree
	Init() ([]*tensors.Tensor, error)
	Loss(p params.Nodes, inputs, targets *graph.Node) *graph.Node
}

// Of returns a model as a chain of blocks: the result of its method Chain, or, for another train.Model, a chain of one
// block. It returns an error for any other type.
func Of(model any) (Model, error) {
	switch m := model.(type) {
	case chained:
		return m.Chain()
	case plainModel:
		return one(m)
	}
	return Model{}, fmt.Errorf("chain: %T is not a model: give a train.Model, or a type with a method Chain", model)
}

// one returns a model as a chain of one block.
func one(w plainModel) (Model, error) {
	m := Model{Initial: w.Init}
	loss := func(p params.Nodes, x, targets, _, _ *graph.Node) *graph.Node { return w.Loss(p, x, targets) }
	if noisy, ok := w.(interface {
		NoisyLoss(p params.Nodes, inputs, targets, key, row *graph.Node) *graph.Node
	}); ok {
		m.Noisy, loss = true, noisy.NoisyLoss
	}
	if multiplier, ok := w.(interface{ MatmulPrecision() precision.Matmul }); ok {
		m.Matmul = multiplier.MatmulPrecision()
	}
	if buffered, ok := w.(interface{ BufferNames() []string }); ok {
		m.Buffers = buffered.BufferNames()
	}
	if checker, ok := w.(interface {
		CheckBatch(inputs, targets *tensors.Tensor) error
	}); ok {
		m.Check = checker.CheckBatch
	}
	m.Blocks = []Block{{Name: "model", Params: w.Params(), Loss: loss}}
	return m, m.Validate()
}

// MatmulPrecision returns [Model.Matmul].
func (m Model) MatmulPrecision() precision.Matmul { return m.Matmul }

// Validate returns an error that says what is invalid and what to do.
func (m Model) Validate() error {
	last := len(m.Blocks) - 1
	if last < 0 || m.Criterion == nil && m.Blocks[last].Loss == nil || m.Initial == nil {
		return errors.New("chain: the model has no blocks, no Criterion or no Initial: give it all three")
	}
	names, kinds, shapes := map[string]bool{}, map[string]Block{}, map[string]params.Spec{}
	for i, b := range m.Blocks {
		if b.Name == "" || names[b.Name] || b.Apply == nil && b.Loss == nil {
			return fmt.Errorf("chain: block #%d, %q, has no Apply, or no name of its own: give it both", i, b.Name)
		}
		if b.Loss != nil && i < last {
			return fmt.Errorf("chain: block %q has a Loss, but block %q follows it: give the Loss to the last block",
				b.Name, m.Blocks[i+1].Name)
		}
		names[b.Name] = true
		if err := b.Params.Validate(); err != nil {
			return fmt.Errorf("chain: block %q: %w", b.Name, err)
		}
		for _, s := range b.Params {
			if other, ok := shapes[s.Name]; ok && !other.Shape.Equal(s.Shape) {
				return fmt.Errorf("chain: block %q has the parameter %s, another block %s: "+
					"give one shape, or two names", b.Name, s, other)
			}
			shapes[s.Name] = s
		}
		like, ok := kinds[b.Kind]
		if kinds[b.Kind] = b; ok && b.Kind != "" && !slices.EqualFunc(like.Params, b.Params, sameShape) {
			return fmt.Errorf("chain: blocks %q and %q are of the kind %q, but their parameters differ in shape: "+
				"give them two kinds", like.Name, b.Name, b.Kind)
		}
	}
	return nil
}

func sameShape(a, b params.Spec) bool { return a.Shape.Equal(b.Shape) }
