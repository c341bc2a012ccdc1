package group

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"weak"
)

// part is what a rank asks of a split, and what it gets.
type part struct {
	color, key int
	sub        *member
}

func (m *member) Split(ctx context.Context, color, key int) (Group, error) {
	asked := &part{color: color, key: key}
	call := Call{Kind: KindSplit, split: asked}
	if err := m.Do(ctx, call); err != nil {
		return nil, err
	}
	if asked.sub != nil {
		return asked.sub, nil
	}
	return nil, nil
}

// split makes the sub-groups that the calls ask for. Their ranks keep their flight
// recorders, and are gone when they are gone here.
func (s *shared) split(seq uint64) {
	s.children = slices.DeleteFunc(s.children, func(c child) bool { return c.group.Value() == nil })
	colors := make(map[int][]int)
	for rank := range s.calls {
		if color := s.calls[rank].split.color; color >= 0 {
			colors[color] = append(colors[color], rank)
		}
	}
	for color, ranks := range colors {
		slices.SortStableFunc(ranks, func(a, b int) int {
			return cmp.Compare(s.calls[a].split.key, s.calls[b].split.key)
		})
		recorders := make([]*Recorder, len(ranks))
		for r, rank := range ranks {
			recorders[r] = s.members[rank].recorder
		}
		name := fmt.Sprintf("split #%d color %d", seq, color)
		if s.name != "" {
			name = s.name + ", " + name
		}
		sub := newShared(name, s.config, recorders)
		sub.parent = s
		for r, rank := range ranks {
			s.calls[rank].split.sub = sub.members[r]
		}
		s.children = append(s.children, child{weak.Make(sub), ranks})
	}
}
