package offload

import (
	"fmt"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/params"
)

// GPT returns a GPT as a chain: the embedding "embed", the blocks "h0", "h1", …, and the head "head". A tied token table
// is a parameter of both ends. An invalid configuration is an error, and so is dropout.
func GPT(c gpt.Config) (Model, error) {
	if err := c.Validate(); err != nil {
		return Model{}, err
	}
	if c.Dropout != 0 {
		return Model{}, fmt.Errorf("offload: gpt.Config.Dropout is %g: set it to 0, blocks have no noise here", c.Dropout)
	}
	m := Model{Criterion: gpt.CrossEntropy, Initial: c.Init, Matmul: c.Matmul}
	var err error
	add := func(name, kind string, paths []string, apply func(p params.Nodes, x *graph.Node) *graph.Node) {
		tree, e := c.Params().Under(paths...)
		if e != nil {
			err = e
		}
		m.Blocks = append(m.Blocks, Block{Name: name, Kind: kind, Params: tree, Apply: apply})
	}
	add("embed", "", c.EmbedPaths(), func(p params.Nodes, x *graph.Node) *graph.Node { return c.Embed(p, x, nil) })
	for i := range c.Layers {
		name := gpt.BlockName(i)
		add(name, "block", []string{name}, func(p params.Nodes, x *graph.Node) *graph.Node { return c.Block(p, i, x, nil) })
	}
	add("head", "", c.HeadPaths(), c.Head)
	return m, err
}
