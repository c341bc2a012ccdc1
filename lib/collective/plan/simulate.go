package plan

import (
	"fmt"
	"slices"
)

// Simulate carries a plan out in one goroutine, one step after the other, on the
// data of all ranks: a plain reference for what runs it between devices. add is the
// reduction; it may be nil for an operation that has none.
//
// data[r] is the whole buffer of rank r, all of one length, whatever part of it the
// operation reads; a rank that only receives may pass nil. The result has the
// buffers afterwards, and data stays as it is. That of AllToAll has the blocks that
// a rank received, in the order of their senders; if the length is no multiple of
// the number of ranks, block p of every rank's data has the length of part p.
//
// It returns an error if the plan is not right (see [Plan.Prove]), for a wrong
// number of buffers, and for buffers of different lengths.
func Simulate[T any](p *Plan, data [][]T, add func(a, b T) T) ([][]T, error) {
	if err := p.Prove(); err != nil {
		return nil, err
	}
	if len(data) != p.Ranks {
		return nil, fmt.Errorf("plan: data of %d ranks for a plan of %d", len(data), p.Ranks)
	}
	if add == nil && p.Op.reduces() {
		return nil, fmt.Errorf("plan: %v needs a reduction", p.Op)
	}
	n := 0
	for _, buffer := range data {
		n = max(n, len(buffer))
	}
	m := machine[[]T]{plan: p, slots: make([][][]T, p.Ranks)}
	m.add = func(a, b []T) ([]T, error) {
		sum := make([]T, len(a)) // a new one, since the old may be under way
		for i := range sum {
			sum[i] = add(a[i], b[i])
		}
		return sum, nil
	}
	for rank, buffer := range data {
		if buffer == nil {
			buffer = make([]T, n)
		}
		if len(buffer) != n {
			return nil, fmt.Errorf("plan: rank %d has %d elements, another rank %d", rank, len(buffer), n)
		}
		m.slots[rank] = make([][]T, p.Slots)
		for c := range p.Chunks {
			begin, end := Cut(n, p.Chunks, c)
			m.slots[rank][c] = buffer[begin:end]
		}
	}
	if err := m.run(); err != nil {
		return nil, err
	}
	results := make([][]T, p.Ranks)
	for rank := range results {
		results[rank] = slices.Concat(resultOf(p, m.slots[rank])...)
	}
	return results, nil
}
