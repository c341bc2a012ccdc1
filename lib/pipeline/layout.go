package pipeline

import (
	"fmt"
	"slices"

	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/pipeline/schedule"
	"github.com/shardbook/shardbook/lib/train"
)

// layout is which rank of a pipeline has which blocks and parameters.
type layout struct {
	stages [][]int // the blocks of each stage
	ranks  []share
	// sets are the sets of ranks that have some parameters in common, in an order that all ranks know.
	sets [][]int
	// firsts are the first ranks that have the entries of the state, by name.
	firsts map[string]int
}

// share is what a rank has of the model.
type share struct {
	blocks  []int        // in the order of the chain
	recipe  train.Recipe // of a model of these blocks alone
	tree    params.Tree  // its parameters
	places  []int        // theirs in the whole model's list
	counted []bool       // whether the rank is the first that has them
	set     []int        // the set of ranks that have them
}

func newLayout(r train.Recipe, model chain.Model, s schedule.Schedule, cut []int) (*layout, error) {
	l := &layout{firsts: map[string]int{}}
	next := 0
	for _, n := range cut {
		var stage []int
		for range n {
			stage = append(stage, next)
			next++
		}
		l.stages = append(l.stages, stage)
	}
	whole := model.Params()
	holders := make([][]int, len(whole)) // by parameter
	for rank := range s.Ranks {
		own := share{recipe: r}
		for _, stage := range s.On(rank) {
			own.blocks = append(own.blocks, l.stages[stage]...)
		}
		part := model
		part.Blocks = nil
		for _, b := range own.blocks {
			part.Blocks = append(part.Blocks, model.Blocks[b])
		}
		own.tree = part.Params()
		own.recipe.Model = part
		for _, spec := range own.tree {
			at := whole.Index(spec.Name)
			own.places = append(own.places, at)
			own.counted = append(own.counted, len(holders[at]) == 0)
			holders[at] = append(holders[at], rank)
		}
		for _, entry := range own.recipe.State() {
			if _, ok := l.firsts[entry.Name]; !ok {
				l.firsts[entry.Name] = rank
			}
		}
		l.ranks = append(l.ranks, own)
	}
	for rank := range l.ranks {
		own := &l.ranks[rank]
		for _, at := range own.places {
			set := slices.IndexFunc(l.sets, func(have []int) bool { return slices.Equal(have, holders[at]) })
			if set < 0 {
				set = len(l.sets)
				l.sets = append(l.sets, holders[at])
			}
			own.set = append(own.set, set)
		}
	}
	if s.Weights != schedule.Flush {
		for rank := range s.Ranks {
			if stages := s.On(rank); len(stages) > 1 {
				return nil, fmt.Errorf("pipeline: rank %d has the stages %v, and with the schedule %s each has versions of its own: "+
					"give a rank one stage, or use a schedule that flushes", rank, stages, s.Name)
			}
		}
		for at, ranks := range holders {
			if len(ranks) > 1 {
				return nil, fmt.Errorf("pipeline: ranks %v have %s in common, and with the schedule %s each updates at its own time: untie it, "+
					"or use a schedule that flushes", ranks, whole[at].Name, s.Name)
			}
		}
	}
	return l, nil
}
