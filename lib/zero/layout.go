package zero

import (
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
)

// unit is parameters that are gathered, and whose gradients are reduced, together: those of one block alone, or one that
// several blocks have in common. Each rank's shard of it is a vector of the shards of its parameters, one after another, and
// the whole is a matrix with one row for each rank.
type unit struct {
	name    string
	places  []int // of the parameters in the model's list
	lengths []int // of their shards, in elements
	offsets []int // where these begin in the unit's
	size    int   // of the unit's shard, in elements
	blocks  []int // that use it
}

// member is a parameter in its unit.
type member struct{ unit, index int }

// layout says how the parameters of a model are sharded.
type layout struct {
	shards int         // ranks that share one copy
	tree   params.Tree // the parameters, in the type that they are kept in
	units  []unit
	uses   [][]int    // by block: its units
	params [][]member // by block: its parameters, in its own order
	member []member   // by parameter of the model
}

// newLayout lays the parameters out for so many ranks.
func newLayout(model chain.Model, rule optim.Rule, tree params.Tree, shards int) layout {
	l := layout{shards: shards, tree: tree, member: make([]member, len(tree))}
	all, home := model.Homes()
	users := make([]int, len(tree))
	for _, places := range all {
		for _, at := range places {
			users[at]++
		}
	}
	for i, b := range model.Blocks {
		own := unit{name: b.Name}
		for _, at := range home[i] {
			if users[at] == 1 {
				own.places = append(own.places, at)
			} else {
				l.add(unit{name: tree[at].Name, places: []int{at}}, rule)
			}
		}
		if len(own.places) > 0 {
			l.add(own, rule)
		}
	}
	for i := range model.Blocks {
		var of []member
		used := map[int]bool{}
		l.uses = append(l.uses, nil)
		for _, at := range all[i] {
			m := l.member[at]
			if of = append(of, m); !used[m.unit] {
				used[m.unit] = true
				l.uses[i] = append(l.uses[i], m.unit)
				l.units[m.unit].blocks = append(l.units[m.unit].blocks, i)
			}
		}
		l.params = append(l.params, of)
	}
	return l
}

// add lays out a unit.
func (l *layout) add(u unit, rule optim.Rule) {
	for k, at := range u.places {
		length := optim.FlatLength(rule, l.tree[at], l.shards)
		u.lengths, u.offsets = append(u.lengths, length), append(u.offsets, u.size)
		u.size += length
		l.member[at] = member{len(l.units), k}
	}
	l.units = append(l.units, u)
}

// shard is the elements of all units' shards.
func (l *layout) shard() (n int) {
	for _, u := range l.units {
		n += u.size
	}
	return n
}

// length is that of a parameter's shard.
func (l *layout) length(at int) int {
	m := l.member[at]
	return l.units[m.unit].lengths[m.index]
}

// parts are the parts that a rank has of the parameters; the functions and nodes are not there.
func (l *layout) parts() []optim.Part {
	parts := make([]optim.Part, len(l.tree))
	for i := range parts {
		parts[i] = optim.Flat{Length: l.length(i)}
	}
	return parts
}
