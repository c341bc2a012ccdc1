package plan

import "fmt"

// machine carries out a plan, round by round, on values of any kind: numbers, or
// symbols. The plan must have passed check.
type machine[V any] struct {
	plan  *Plan
	slots [][]V // by rank and slot
	// add is the reduction.
	add func(a, b V) (V, error)
	// read, if given, sees every value that a step uses.
	read func(s Step, slot int, v V) error
	// after, if given, is called after each round.
	after func(round int)
}

func (m *machine[V]) run() error {
	next := make([]int, m.plan.Ranks) // step of each rank
	for round := range m.plan.Rounds {
		sent := map[[2]int][]V{} // by sender and receiver, in order
		for rank, steps := range m.plan.Steps {
			for _, s := range steps[next[rank]:] {
				if s.Round != round || s.Action > Receive {
					break
				}
				if s.Action == Send {
					v, err := m.get(rank, s, s.Slot)
					if err != nil {
						return err
					}
					sent[[2]int{rank, s.Peer}] = append(sent[[2]int{rank, s.Peer}], v)
				}
			}
		}
		for rank, steps := range m.plan.Steps {
			for _, s := range steps[next[rank]:] {
				if s.Round != round {
					break
				}
				if err := m.take(rank, s, sent); err != nil {
					return err
				}
				next[rank]++
			}
		}
		if m.after != nil {
			m.after(round)
		}
	}
	return nil
}

// take does what a step does to the rank's own slots.
func (m *machine[V]) take(rank int, s Step, sent map[[2]int][]V) error {
	switch s.Action {
	case Receive:
		ends := [2]int{s.Peer, rank}
		m.slots[rank][s.Slot] = sent[ends][0]
		sent[ends] = sent[ends][1:]
	case Add:
		a, err := m.get(rank, s, s.Slot)
		if err != nil {
			return err
		}
		b, err := m.get(rank, s, s.From)
		if err != nil {
			return err
		}
		sum, err := m.add(a, b)
		if err != nil {
			return fmt.Errorf("plan: %v: %w", where{rank, s}, err)
		}
		m.slots[rank][s.Slot] = sum
	case Copy:
		v, err := m.get(rank, s, s.From)
		if err != nil {
			return err
		}
		m.slots[rank][s.Slot] = v
	}
	return nil
}

func (m *machine[V]) get(rank int, s Step, slot int) (V, error) {
	v := m.slots[rank][slot]
	if m.read != nil {
		if err := m.read(s, slot, v); err != nil {
			return v, fmt.Errorf("plan: %v: %w", where{rank, s}, err)
		}
	}
	return v, nil
}

// where names a step in errors.
type where struct {
	rank int
	step Step
}

func (w where) String() string {
	return fmt.Sprintf("rank %d, round %d (%v)", w.rank, w.step.Round, w.step)
}
