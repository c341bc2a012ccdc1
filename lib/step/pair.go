package step

import (
	"errors"
	"fmt"
)

// Pair is a range of a rank's list in which it alternates between forward passes of one micro-batch and paired passes,
// which go backward, of another one: each of the two goes on while the other waits for an exchange in the middle of a
// pass, as in DualPipe (DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", §3.2.1).
//
// The passes may have sends between them, which come when what is before them in the list is done, and nothing else.
// Since either may wait for the other, a pair starts when the inputs of both are there, and not before.
type Pair struct {
	From, Second, To int // positions: of the first pass, of the first paired one, and after the last
}

// Pairs returns the pair that the operation at each position of a rank's list is in; the zero Pair if it is in none.
func (p *Plan) Pairs(rank int) []Pair {
	list := p.Ranks[rank]
	pairs := make([]Pair, len(list))
	for i := 0; i < len(list); i++ {
		if !list[i].Paired {
			continue
		}
		pair := Pair{i, i, i + 1}
		for j := i - 1; j >= 0 && pairs[j].To == 0 && (list[j].Kind == Send || list[j].Kind == Forward &&
			(pair.From == i || list[j].Micro == list[pair.From].Micro)); j-- {
			if list[j].Kind == Forward {
				pair.From = j
			}
		}
		for j := i + 1; j < len(list) && (list[j].Kind == Send ||
			list[j].Paired && list[j].Micro == list[i].Micro); j++ {
			if list[j].Paired {
				pair.To = j + 1
			}
		}
		for j := pair.From; j < pair.To; j++ {
			pairs[j] = pair
		}
		i = pair.To - 1
	}
	return pairs
}

// checkPairs checks that each paired pass is in a pair.
func (p *Plan) checkPairs(rank int) error {
	for i, pair := range p.Pairs(rank) {
		op := p.Ranks[rank][i]
		if !op.Paired {
			continue
		}
		var err error
		switch rule := passRules[op.Kind]; {
		case rule.needs == 0:
			err = errors.New("only a backward pass, or its recomputation, can be paired with forward passes before it")
		case p.Weights != Flush:
			err = fmt.Errorf("with weights %q, there may be updates between passes: pair none", p.Weights)
		case pair.From == pair.Second:
			err = errors.New("it is paired, and no forward passes are before it: put these right before, with at most " +
				"sends between them")
		case op.Micro == p.Ranks[rank][pair.From].Micro:
			err = errors.New("it is paired with forward passes of the same micro-batch: pair it with those of another")
		}
		if err != nil {
			return p.errorAt(rank, i, "%w", err)
		}
	}
	return nil
}
