package gpt

import (
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/recompute"
)

// Chain returns the model as a chain: the embedding "embed", the blocks "h0", "h1", …, and the head "head". A tied token
// table is a parameter of both ends. An invalid configuration is an error.
func (c Config) Chain() (chain.Model, error) {
	if err := c.Validate(); err != nil {
		return chain.Model{}, err
	}
	m := chain.Model{Criterion: CrossEntropy, Initial: c.Init, Matmul: c.Matmul, Noisy: c.Dropout > 0}
	var err error
	add := func(name, kind string, paths []string, apply func(p params.Nodes, x *graph.Node, noise *Noise) *graph.Node) {
		tree, e := c.Params().Under(paths...)
		if e != nil {
			err = e
		}
		m.Blocks = append(m.Blocks, chain.Block{Name: name, Kind: kind, Params: tree,
			Apply: func(p params.Nodes, x, key, row *graph.Node) *graph.Node {
				if key == nil {
					return apply(p, x, nil)
				}
				return apply(p, x, &Noise{Key: key, Row: row})
			}})
	}
	kind := "block"
	if c.Dropout > 0 || c.Recompute != recompute.None { // each block has noise, or a plan, of its own
		kind = ""
	}
	add("embed", "", c.EmbedPaths(), c.Embed)
	for i := range c.Layers {
		name := BlockName(i)
		add(name, kind, []string{name}, func(p params.Nodes, x *graph.Node, noise *Noise) *graph.Node { return c.Block(p, i, x, noise) })
	}
	add("head", "", c.HeadPaths(), func(p params.Nodes, x *graph.Node, _ *Noise) *graph.Node { return c.Head(p, x) })
	return m, err
}
