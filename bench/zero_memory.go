package main

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/spf13/pflag"

	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/zero"
)

// zeroMemory measures what a device needs besides its shard of the state in ZeRO's stage 3: the temporary memory of a
// compiled step of a stack of equal blocks. Each block should add a device's shard of the block's gradients, and
// nothing else: only a few blocks at a time have full weights and full gradients.
type zeroMemory struct {
	depths []int
	width  int
}

func newZeroMemory() *benchmark {
	var b zeroMemory
	return &benchmark{name: "zero-memory", untimed: true,
		about: fmt.Sprintf("the temporary memory of a step of a deep stack, its state sharded over %d devices, float32",
			stackDevices),
		flags: b.flags, cases: b.cases, implementations: stackImplementations}
}

const (
	stackDevices = 4

	// stackRows is the batch: so small that activations are small beside the weights.
	stackRows = 8

	// stackTolerance is the error allowed of losses, which are in the tens: rounding shows
	// in their sixth digit after four steps.
	stackTolerance = 1e-3

	// stackMost bounds what may be asked for.
	stackMost = 1 << 12
)

func (b *zeroMemory) flags(flags *pflag.FlagSet) {
	flags.IntSliceVar(&b.depths, "layers", []int{4, 8, 16, 32}, "numbers of blocks")
	flags.IntVar(&b.width, "d", 256, "hidden size")
}

func (b *zeroMemory) cases() (cases []testCase, err error) {
	if b.width < 1 || b.width > stackMost || b.width%stackDevices != 0 {
		return nil, fmt.Errorf("--d=%d: want a multiple of %d, at most %d", b.width, stackDevices, stackMost)
	}
	for _, depth := range b.depths {
		if depth < 1 || depth > stackMost {
			return nil, fmt.Errorf("--layers: %d blocks, want 1 to %d", depth, stackMost)
		}
		c := stackCase{Depth: depth, Width: b.width, Rows: stackRows}
		cases = append(cases, testCase{name: c.String(), params: c, within: stackTolerance, describe: c.describe})
	}
	return cases, nil
}

func stackImplementations() []implementation {
	jax := func(args ...string) commands {
		return python([]string{jaxDevices(stackDevices)}, "zero.py",
			append([]string{"--devices=" + strconv.Itoa(stackDevices)}, args...)...)
	}
	return []implementation{
		{name: "zero3", about: "stage 3, one program", role: ours, serve: serveTrial(stackDevices, stackTrial)},
		{name: "jax-fsdp", about: "the same state sharded, block after block", role: peer, commands: jax()},
		{name: "jax-fsdp-scan", about: "the same, in jax.lax.scan over jax.checkpoint", role: peer,
			commands: jax("--scan")},
	}
}

// stackCase is a deep stack of equal residual blocks, x + tanh(x·up)·down, and its batch.
type stackCase struct {
	Depth int `json:"depth"`
	Width int `json:"width"`
	Rows  int `json:"rows"`
}

func (c stackCase) String() string {
	return fmt.Sprintf("%d blocks, width %d, %d rows", c.Depth, c.Width, c.Rows)
}

// blockBytes is the size of one block's weights.
func (c stackCase) blockBytes() int64 { return 2 * 4 * int64(c.Width) * int64(c.Width) }

// gradientBytes is the size of a device's shard of all gradients.
func (c stackCase) gradientBytes() int64 { return c.blockBytes() * int64(c.Depth) / stackDevices }

func (c stackCase) describe(r *record) {
	r.Depth, r.BlockBytes, r.GradientBytes = c.Depth, c.blockBytes(), c.gradientBytes()
}

// model has the numbered arrays of [flashData] as weights, two a block.
func (c stackCase) model() chain.Model {
	block := func(name string) chain.Block {
		up, down := name+".up", name+".down"
		tree := params.Tree{params.New(up, dtypes.Float32, c.Width, c.Width),
			params.New(down, dtypes.Float32, c.Width, c.Width)}
		return chain.Block{Params: tree, Apply: func(p params.Nodes, x, _, _ *graph.Node) *graph.Node {
			hidden := graph.Tanh(graph.Dot(x, p.Get(up)).Product())
			return graph.Add(x, graph.Dot(hidden, p.Get(down)).Product())
		}}
	}
	return equalBlocks(c.Depth, block, 1/math.Sqrt(float64(c.Width)))
}

// equalBlocks is a chain of n blocks h0, h1, …, whose loss is the mean squared error. Its matrices are numbered arrays,
// scaled; its vectors are 0.
func equalBlocks(n int, block func(name string) chain.Block, scale float64) chain.Model {
	m := chain.Model{Criterion: squareError}
	for i := range n {
		b := block(fmt.Sprintf("h%d", i))
		b.Name, b.Kind = fmt.Sprintf("h%d", i), "block"
		m.Blocks = append(m.Blocks, b)
	}
	m.Initial = func() (weights []*tensors.Tensor, err error) {
		number := 0
		for _, b := range m.Blocks {
			for _, p := range b.Params {
				if p.Shape.Rank() < 2 {
					weights = append(weights, tensors.FromShape(p.Shape))
					continue
				}
				weights = append(weights, numberedArray(number, scale, p.Shape.Dim(0), p.Shape.Dim(1)))
				number++
			}
		}
		return weights, nil
	}
	return m
}

// batch is the same in every step.
func (c stackCase) batch(int) (inputs, targets *tensors.Tensor, err error) {
	return numberedArray(2*c.Depth, 1, c.Rows, c.Width), numberedArray(2*c.Depth+1, 1, c.Rows, c.Width), nil
}

// squareError is the mean of the squared differences.
func squareError(y, targets *graph.Node) *graph.Node {
	return graph.ReduceAllMean(graph.Square(graph.Sub(y, targets)))
}

// numberedArray is the array of [flashData] of that number, scaled.
func numberedArray(number int, scale float64, rows, columns int) *tensors.Tensor {
	flat := flashData(number, rows*columns)
	for i := range flat {
		flat[i] *= float32(scale)
	}
	return tensors.FromFlatDataAndDimensions(flat, rows, columns)
}

func stackTrial(params []byte) (trial, error) {
	var c stackCase
	err := json.Unmarshal(params, &c)
	return trial{
		start:  startZero(zero.Options{Stage: 3}),
		recipe: train.Recipe{Model: c.model(), Optimizer: optim.AdamW(trainRate)},
		batch:  c.batch,
	}, err
}
