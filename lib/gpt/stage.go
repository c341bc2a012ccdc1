package gpt

import (
	"fmt"
	"slices"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/params"
)

// Stage is a stage of the model: blocks first to last−1, with the embedding before block 0 and the head after the last
// block. x is the tokens (B,T) for a stage that begins with block 0, else the previous stage's output (B,T,C). The
// result is (B,T,C), or the logits (B,T,V) of the last stage. It uses only the parameters of [Config.StageParams]. The
// noise may be nil. It panics if the blocks are not in the model or x does not fit.
func (c Config) Stage(p params.Nodes, first, last int, x *graph.Node, noise *Noise) *graph.Node {
	return c.oneDevice().stage(p, first, last, x, noise)
}

func (c layers) stage(p params.Nodes, first, last int, x *graph.Node, noise *Noise) *graph.Node {
	if err := c.checkStage(first, last); err != nil {
		panic(err)
	}
	if first == 0 {
		x = c.embed(p, x, noise)
	}
	plan := c.plan()
	x = plan.Enter(first, x)
	for i := first; i < last; i++ {
		x = c.block(p, i, x, noise, plan)
	}
	if last == c.Layers {
		x = c.head(p, x)
	}
	return x
}

// StageParams lists the parameters of a stage, in the order of [Config.Params]. A tied token table belongs to the first
// stage and to the last. It is an error if the configuration is invalid or the blocks are not in the model.
func (c Config) StageParams(first, last int) (params.Tree, error) {
	if err := c.checkStage(first, last); err != nil {
		return nil, err
	}
	var paths []string
	for i := first; i < last; i++ {
		paths = append(paths, BlockName(i))
	}
	if first == 0 {
		paths = append(paths, c.EmbedPaths()...)
	}
	if last == c.Layers {
		for _, path := range c.HeadPaths() {
			if !slices.Contains(paths, path) { // the tied token table
				paths = append(paths, path)
			}
		}
	}
	return c.Params().Under(paths...)
}

// EmbedPaths lists the paths of the parameters that [Config.Embed] needs.
func (c Config) EmbedPaths() []string {
	if c.Positions == Rotary {
		return []string{"tok"}
	}
	return []string{"tok", "pos"}
}

// HeadPaths lists the paths of the parameters that [Config.Head] needs.
func (c Config) HeadPaths() []string {
	if c.Tied {
		return []string{"lnf", "tok"}
	}
	return []string{"lnf", "head"}
}

func (c Config) checkStage(first, last int) error {
	if err := c.Validate(); err != nil {
		return err
	}
	if first < 0 || last > c.Layers || first >= last {
		return fmt.Errorf("gpt: a stage of blocks %d to %d of a model with %d: count from 0 and include at least one",
			first, last-1, c.Layers)
	}
	return nil
}
