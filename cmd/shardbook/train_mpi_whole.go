package main

import (
	"errors"
	"slices"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/params"
)

// whole gives all processes the parameters of the tree, of which each has some. It is a collective call.
func (c *crew) whole(tree params.Tree, own params.Named[*tensors.Tensor]) error {
	if c == nil {
		return nil
	}
	var names []string
	for _, s := range tree {
		if own[s.Name] != nil {
			names = append(names, s.Name)
		}
	}
	all, err := shared(c, names)
	if err != nil {
		return err
	}
	for _, s := range tree {
		has := func(names []string) bool { return slices.Contains(names, s.Name) }
		lacks := func(names []string) bool { return !has(names) }
		from := slices.IndexFunc(all, has)
		if from < 0 || !slices.ContainsFunc(all, lacks) {
			continue
		}
		if own[s.Name] == nil {
			own[s.Name] = tensors.FromShape(s.Shape)
		}
		e := own[s.Name].MutableBytes(func(data []byte) { err = group.Broadcast(c.ctx, c.talk, data, from) })
		if err := errors.Join(err, e); err != nil {
			return err
		}
	}
	return nil
}

// most is the largest number of each kind that any process has. It is a collective call.
func (c *crew) most(own map[string]int64) (map[string]int64, error) {
	all, err := shared(c, own)
	if err != nil {
		return nil, err
	}
	most := map[string]int64{}
	for _, kinds := range all {
		for kind, n := range kinds {
			most[kind] = max(most[kind], n)
		}
	}
	return most, nil
}
