package plan

import "fmt"

// Load is a number of messages and what they carry. All that one rank sends another
// in one round is one message, however many chunks it has.
type Load struct{ Messages, Bytes int }

// Traffic is what a plan sends.
type Traffic struct {
	Rounds   int      // in which anything is sent
	Total    Load     // over all ranks
	Sent     []Load   // by rank
	Received []Load   // by rank
	Links    [][]Load // by sender and receiver; nil from Formula
}

// Count counts the messages and bytes of a plan for data of so many elements, each
// of elementSize bytes: the whole buffer of a rank, also where each rank begins or
// ends with one part of it. It returns an error for negative sizes, and for a plan
// that cannot be carried out.
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

// messages lists the messages of each round, those of one rank in the order in which
// it begins them.
func (p *Plan) messages(elements, elementSize int) ([][]message, error) {
	if err := checkSize(elements, elementSize); err != nil {
		return nil, err
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

func checkSize(elements, elementSize int) error {
	if elements < 0 || elementSize < 0 {
		return fmt.Errorf("plan: %d elements of %d bytes: want neither below 0", elements, elementSize)
	}
	return nil
}
