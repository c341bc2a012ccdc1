// Package chain describes a model as a chain of blocks, each a graph function of its own parameters and of what the
// block before it made, and builds the two passes of each block. Techniques that drive a model block by block take one:
// they decide where a block is computed, when, and what is kept or sent in between.
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
	// Kind, where it is not "", is the same for blocks that are the same function of parameters of the same shapes in
	// the same order, whatever their names. They share their programs, so that a deep model compiles as fast as a
	// shallow one. Engines refuse blocks of one kind that are not ([Kinds]).
	Kind string
	// Params lists the parameters. Blocks that list one of the same name have it in common.
	Params params.Tree
	// Apply builds the graph from the output of the block before, or the inputs of the model, to the block's own. A
	// block with noise, such as dropout, takes it from the key and the row, which are those of train.Noisy; both are
	// nil where there is to be none.
	Apply func(p params.Nodes, x, key, row *graph.Node) *graph.Node
	// Loss is for a last block whose loss has parameters, or cannot be told from the rest: it takes what Apply does,
	// and the targets, and returns the mean loss over a batch. Apply and [Model.Criterion] are then not used.
	Loss func(p params.Nodes, x, targets, key, row *graph.Node) *graph.Node
}

// Model is a chain of blocks. It is a train.Model, train.Noisy and train.Buffered.
type Model struct {
	Blocks []Block
	// Criterion returns the mean loss over a batch, a scalar, from the last block's output and the targets; nil where
	// that block has a Loss.
	Criterion func(y, targets *graph.Node) *graph.Node
	// Initial returns the initial values of the parameters in the order of [Model.Params].
	Initial func() ([]*tensors.Tensor, error)
	// Matmul says how the blocks compute products, where that is not plainly.
	Matmul precision.Matmul
	// Noisy is true if blocks make something of a key.
	Noisy bool
	// Buffers are the names of parameters that are buffers, and not weights: see train.Buffered.
	Buffers []string
	// Check, where it is not nil, returns an error for a batch that the model is not for: see train.Checker.
	Check func(inputs, targets *tensors.Tensor) error
}

// Params lists the parameters of all blocks in the order of the chain. What several have in common is listed with the
// first of them.
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

// Loss is the whole model as one graph, without noise.
func (m Model) Loss(p params.Nodes, inputs, targets *graph.Node) *graph.Node {
	return m.NoisyLoss(p, inputs, targets, nil, nil)
}

// NoisyLoss is the whole model as one graph.
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

// rethrow says of a panic whose it is.
func rethrow(whose string) {
	switch by := recover().(type) {
	case nil:
	case error:
		panic(fmt.Errorf("%s: %w", whose, by))
	default:
		panic(fmt.Errorf("%s: %v", whose, by))
	}
}

// end is the last block and the loss. It panics if that is no float scalar.
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

// CheckBatch is [Model.Check].
func (m Model) CheckBatch(inputs, targets *tensors.Tensor) error {
	if m.Check == nil {
		return nil
	}
	return m.Check(inputs, targets)
}

// BufferNames is [Model.Buffers].
func (m Model) BufferNames() []string { return m.Buffers }

// Chain returns the model itself, which therefore satisfies chained.
func (m Model) Chain() (Model, error) { return m, m.Validate() }

// chained is what can be taken as a chain of blocks. gpt.Config is.
type chained interface {
	Chain() (Model, error)
}

// whole is a model with one function for all of it: a train.Model, without what it needs of package train.
type whole interface {
	Params() params.Tree
	Init() ([]*tensors.Tensor, error)
	Loss(p params.Nodes, inputs, targets *graph.Node) *graph.Node
}

// Of returns a model as a chain of blocks. A train.Model that is not chained is a chain of one block: whatever works
// on blocks has all of it at once. What is no model is an error.
func Of(model any) (Model, error) {
	switch m := model.(type) {
	case chained:
		return m.Chain()
	case whole:
		return one(m)
	}
	return Model{}, fmt.Errorf("chain: %T is no model: give a train.Model, or one that has the method Chain", model)
}

// one is a model as a chain of one block.
func one(w whole) (Model, error) {
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

// MatmulPrecision returns how the blocks compute products.
func (m Model) MatmulPrecision() precision.Matmul { return m.Matmul }

// Validate returns an error that says what is not valid, and what to do.
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
			return fmt.Errorf("chain: block %q has a Loss, and block %q comes behind it: give it to that",
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
