package pipeline

import (
	"context"
	"fmt"
	"slices"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/rank"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/pipeline/schedule"
	"github.com/shardbook/shardbook/lib/train"
)

// Division says which rank of a pipeline has which blocks and parameters.
type Division struct {
	Stages [][]int // the blocks of each stage
	Shares []Share // by rank
	// Sets are the sets of ranks that have some parameters in common, in an order that all ranks know.
	Sets [][]int
	// Firsts are the first ranks that have the entries of the state, by name.
	Firsts map[string]int
}

// Share is what a rank has of the model.
type Share struct {
	Blocks  []int        // in the order of the chain
	Recipe  train.Recipe // of a model of these blocks alone
	Tree    params.Tree  // its parameters
	Places  []int        // theirs in the whole model's list
	Counted []bool       // whether the rank is the first that has them
	Set     []int        // the set of ranks that have them
}

// Initial is the share's part of rank 0's initial state of the whole recipe, in the order of its own. It is a collective call.
func (s Share) Initial(ctx context.Context, g group.Group, whole train.Recipe) ([]*tensors.Tensor, error) {
	values, err := whole.Initial()
	if err != nil {
		return nil, err
	}
	if err := rank.FromFirst(ctx, g, values); err != nil {
		return nil, err
	}
	all := whole.State()
	var own []*tensors.Tensor
	for _, entry := range s.Recipe.State() {
		own = append(own, values[all.Index(entry.Name)])
	}
	return own, nil
}

// Divide deals the blocks of a recipe's model to the ranks of a schedule; cut is how many each stage has. A parameter that several
// ranks have in common is an error where they update at times of their own.
func Divide(r train.Recipe, model chain.Model, s schedule.Schedule, cut []int) (*Division, error) {
	l := &Division{Firsts: map[string]int{}}
	next := 0
	for _, n := range cut {
		var stage []int
		for range n {
			stage = append(stage, next)
			next++
		}
		l.Stages = append(l.Stages, stage)
	}
	whole := model.Params()
	holders := make([][]int, len(whole)) // by parameter
	for rank := range s.Ranks {
		own := Share{Recipe: r}
		for _, stage := range s.On(rank) {
			own.Blocks = append(own.Blocks, l.Stages[stage]...)
		}
		part := model
		part.Blocks = nil
		for _, b := range own.Blocks {
			part.Blocks = append(part.Blocks, model.Blocks[b])
		}
		own.Tree = part.Params()
		own.Recipe.Model = part
		for _, spec := range own.Tree {
			at := whole.Index(spec.Name)
			own.Places = append(own.Places, at)
			own.Counted = append(own.Counted, len(holders[at]) == 0)
			holders[at] = append(holders[at], rank)
		}
		for _, entry := range own.Recipe.State() {
			if _, ok := l.Firsts[entry.Name]; !ok {
				l.Firsts[entry.Name] = rank
			}
		}
		l.Shares = append(l.Shares, own)
	}
	for rank := range l.Shares {
		own := &l.Shares[rank]
		for _, at := range own.Places {
			set := slices.IndexFunc(l.Sets, func(have []int) bool { return slices.Equal(have, holders[at]) })
			if set < 0 {
				set = len(l.Sets)
				l.Sets = append(l.Sets, holders[at])
			}
			own.Set = append(own.Set, set)
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

// Groups are those that a rank of several pipelines side by side, replicas of each other, makes calls in: of its own pipeline, and, by
// the numbers of Sets, of the ranks of all pipelines that have parameters in common with it, where there are several. Of the group of
// all ranks the first ones are the first pipeline. It is a collective call.
func (d *Division) Groups(ctx context.Context, all group.Group, replicas int) (pipe group.Group, sets map[int]group.Group, err error) {
	n := len(d.Shares)
	if pipe, err = all.Split(ctx, all.Rank()/n, all.Rank()); err != nil {
		return nil, nil, err
	}
	sets = map[int]group.Group{}
	for i, set := range d.Sets {
		if len(set)*replicas == 1 {
			continue
		}
		color := -1
		if slices.Contains(set, all.Rank()%n) {
			color = 0
		}
		of, err := all.Split(ctx, color, all.Rank())
		if err != nil {
			return nil, nil, err
		}
		if color == 0 {
			sets[i] = of
		}
	}
	return pipe, sets, nil
}

// Pipe are the ranks of the pipeline that one is in, of several side by side, in the pipeline's order.
func (d *Division) Pipe(of int) []int {
	n := len(d.Shares)
	return rank.Numbers(of-of%n, 1, n)
}

// Members are the ranks, of all pipelines, that have a set's parameters, in the order in which their group numbers them.
func (d *Division) Members(set, replicas int) (ranks []int) {
	for copies := range replicas {
		for _, at := range d.Sets[set] {
			ranks = append(ranks, copies*len(d.Shares)+at)
		}
	}
	return ranks
}
