package gpt

import (
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/recompute"
)

// Chain returns the model as a chain of blocks: the embedding "embed", the Transformer blocks "h0", "h1", …, and the
// head "head". A tied token table is a parameter of embedding and head. An invalid configuration is an error.
func (c Config) Chain() (chain.Model, error) {
	if err := c.Validate(); err != nil {
		return chain.Model{}, err
	}
	return c.chain(func(*graph.Graph) layers { return c.oneDevice() })
}

// Chain is [Config.Chain] with tensor and sequence parallelism: the blocks use the device's shards of the parameters,
// and pass its tokens on to each other. Their graphs need the mesh.
func (m Parallel) Chain() (chain.Model, error) {
	if err := m.Validate(); err != nil {
		return chain.Model{}, err
	}
	return m.Config.chain(m.layers)
}

// chain returns the chain of layers that may depend on the graph's mesh.
func (c Config) chain(on func(*graph.Graph) layers) (chain.Model, error) {
	m := chain.Model{Initial: c.Init, Matmul: c.Matmul, Noisy: c.Dropout > 0, Check: c.CheckBatch,
		Criterion: func(y, targets *graph.Node) *graph.Node { return on(y.Graph()).loss(y, targets) }}
	var err error
	add := func(name, kind string, paths []string, apply func(c layers, p params.Nodes, x *graph.Node,
		noise *Noise) *graph.Node) {
		tree, e := c.Params().Under(paths...)
		if e != nil {
			err = e
		}
		m.Blocks = append(m.Blocks, chain.Block{Name: name, Kind: kind, Params: tree,
			Apply: func(p params.Nodes, x, key, row *graph.Node) *graph.Node {
				var noise *Noise
				if key != nil {
					noise = &Noise{Key: key, Row: row}
				}
				return apply(on(x.Graph()), p, x, noise)
			}})
	}
	kind := "block"
	if c.Dropout > 0 || c.Recompute != recompute.None { // each block has random numbers, or a plan, of its own
		kind = ""
	}
	add("embed", "", c.EmbedPaths(), func(c layers, p params.Nodes, tokens *graph.Node, noise *Noise) *graph.Node {
		return c.embed(p, c.local(tokens), noise)
	})
	for i := range c.Layers {
		name := BlockName(i)
		add(name, kind, []string{name}, func(c layers, p params.Nodes, x *graph.Node, noise *Noise) *graph.Node {
			plan := c.plan()
			return c.block(p, i, plan.Enter(i, x), noise, plan)
		})
	}
	add("head", "", c.HeadPaths(), func(c layers, p params.Nodes, x *graph.Node,
		_ *Noise) *graph.Node {
		return c.head(p, x)
	})
	return m, err
}
