package mpijob

import (
	"errors"
	"slices"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/params"
)

// Gather gives all processes the parameters of the full tree, of which each has some. It is a collective call.
func (c *Job) Gather(tree params.Tree, own params.Named[*tensors.Tensor]) error {
	if c == nil {
		return nil
	}
	var names []string
	for _, s := range tree {
		if own[s.Name] != nil {
			names = append(names, s.Name)
		}
	}
	all, err := Exchange(c, names)
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
		e := own[s.Name].MutableBytes(func(data []byte) { err = group.Broadcast(c.ctx, c.Talk, data, from) })
		if err := errors.Join(err, e); err != nil {
			return err
		}
	}
	return nil
}

// Most returns the maximum over all processes for each kind. It is a collective call.
func (c *Job) Most(own map[string]int64) (map[string]int64, error) {
	all, err := Exchange(c, own)
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
