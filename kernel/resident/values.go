package main

import (
	"maps"
	"slices"

	"github.com/shardbook/shardbook/lib/resident"
)

// kept is a value that a cell has kept.
type kept struct {
	data   []byte
	arrays []resident.KeptArray
	made   source // what the cell's program was made of
	lost   string // why the arrays are gone
}

// put keeps a value in place of the one that had the name.
func (n *notebook) put(_ *resident.Session, p resident.Put) (resident.Done, error) {
	made := readSource(p.Program).used()
	n.mu.Lock()
	old := n.values[p.Name]
	n.values[p.Name] = &kept{data: p.Data, arrays: p.Arrays, made: made}
	n.mu.Unlock()
	if old != nil {
		n.release(old)
	}
	return resident.Done{OK: true}, nil
}

// release frees a value's arrays.
func (n *notebook) release(v *kept) {
	free := map[string][]uint64{}
	for _, a := range v.arrays {
		free[a.Socket] = append(free[a.Socket], a.ID)
	}
	for socket, arrays := range free {
		if c, err := resident.Dial(socket); err == nil { // else its process has ended
			_, _ = resident.Call[resident.Array](c, resident.Keep{Free: arrays})
			c.Close()
		}
	}
}

// get returns a value, and what has changed since the cell that kept it ran.
func (n *notebook) get(_ *resident.Session, g resident.Get) (got resident.Got, err error) {
	now := readSource(g.Program)
	n.mu.Lock()
	defer n.mu.Unlock()
	v := n.values[g.Name]
	if v == nil {
		return got, nil
	}
	return resident.Got{Found: true, Data: v.data, Arrays: v.arrays, Changed: v.made.changed(now), Lost: v.lost}, nil
}

func (n *notebook) names(*resident.Session, resident.Names) (resident.NamesAre, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return resident.NamesAre{Sorted: slices.Sorted(maps.Keys(n.values))}, nil
}

// lose marks the values whose arrays a process had, and returns their names. The caller holds the lock.
func (n *notebook) lose(socket, why string) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(n.values)) {
		v := n.values[name]
		if slices.ContainsFunc(v.arrays, func(a resident.KeptArray) bool { return a.Socket == socket }) {
			v.lost = why
			names = append(names, name)
		}
	}
	return names
}
