package plan

import "fmt"

// Load is a number of messages and their bytes. All that one rank sends another in
// one round is one message, whatever the number of its chunks.
type Load struct{ Messages, Bytes int }

// Traffic is what a plan sends.
type Traffic struct {
	Rounds   int      // in which anything is sent
	Total    Load     // over all ranks
	Sent     []Load   // by rank
	Received []Load   // by rank
	Links    [][]Load // by sender and receiver
}

// Count is the traffic of the plan that [New] makes. For N ranks and n bytes, where N divides n, the busiest rank sends
// the following bytes in the following rounds; L is ⌈log2 N⌉:
//
//	broadcast   naive                 (N-1)n      N-1
//	            ring                  n           2(N-1)
//	            tree                  L·n         L
//	all-reduce  naive                 (N-1)n      2(N-1)
//	            one-shot              (N-1)n      1
//	            tree                  L·n         2L
//	            recursive doubling    L·n         L        (N a power of two)
//	            ring                  2(N-1)n/N   2(N-1)
//	            bidirectional ring    2(N-1)n/N   2⌊N/2⌋
//	            halving-doubling      2(N-1)n/N   2L
//	            hierarchical          2(N-1)n/N   2(G+g-2) (G groups of g)
//	all-to-all  naive                 (N-1)n/N    N-1
//	            ring                  (N-1)n/2    N-1
//	            recursive doubling    L·n/2       L        (N a power of two)
//
// All-gather and reduce-scatter by the last four for all-reduce take half. The errors
// are those of New and of [Plan.Count].
func Count(op Op, algorithm Algorithm, ranks, elements, elementSize int, options ...Option) (Traffic, error) {
	p, err := New(op, algorithm, ranks, options...)
	if err != nil {
		return Traffic{}, err
	}
	return p.Count(elements, elementSize)
}

// Count counts the messages and bytes of a plan for data of elementSize bytes an element: the
// full buffer of a rank, also where each rank begins or ends with one part of it. It
// returns an error for negative sizes, and for a plan that cannot be carried out.
func (p *Plan) Count(elements, elementSize int) (Traffic, error) {
	rounds, err := p.messages(elements, elementSize)
	if err != nil {
		return Traffic{}, err
	}
	t := Traffic{Sent: make([]Load, p.Ranks), Received: make([]Load, p.Ranks), Links: make([][]Load, p.Ranks)}
	for rank := range t.Links {
		t.Links[rank] = make([]Load, p.Ranks)
	}
	for _, round := range rounds {
		if len(round) > 0 {
			t.Rounds++
		}
		for _, m := range round {
			for _, load := range []*Load{&t.Total, &t.Sent[m.from], &t.Received[m.to], &t.Links[m.from][m.to]} {
				load.Messages++
				load.Bytes += m.bytes
			}
		}
	}
	return t, nil
}

// message is all that one rank sends another in a round.
type message struct{ from, to, bytes int }

// messages lists the messages of each round, those of one rank in the order in which it begins them.
func (p *Plan) messages(elements, elementSize int) ([][]message, error) {
	if elements < 0 || elementSize < 0 {
		return nil, fmt.Errorf("plan: %d elements of %d bytes: want neither below 0", elements, elementSize)
	}
	if err := p.check(); err != nil {
		return nil, err
	}
	rounds := make([][]message, p.Rounds)
	for rank, steps := range p.Steps {
		round, place := -1, map[int]int{} // by peer
		for _, s := range steps {
			if s.Action != Send {
				continue
			}
			if s.Round != round {
				round = s.Round
				clear(place)
			}
			at, seen := place[s.Peer]
			if !seen {
				at = len(rounds[round])
				place[s.Peer] = at
				rounds[round] = append(rounds[round], message{from: rank, to: s.Peer})
			}
			rounds[round][at].bytes += p.bytes(s.Chunk, elements, elementSize)
		}
	}
	return rounds, nil
}

// bytes is the size of a chunk.
func (p *Plan) bytes(chunk, elements, elementSize int) int {
	begin, end := Cut(elements, p.Chunks, chunk)
	return (end - begin) * elementSize
}
