package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// String is the plan as text, which [Parse] reads back:
//
//	all-reduce by ring: 2 ranks, root 0, 2 chunks, 3 slots, 2 rounds
//	rank 0
//	  0: send 1 to 1; receive 2[0] from 1; 0 += 2
//	  1: send 0 to 1; receive 1 from 1
//	rank 1
//	…
//
// Each line is a round of a rank. 1 is slot 1, with chunk 1; 2[0] is slot 2, with the
// size of chunk 0. "0 += 2" adds slot 2 to slot 0, and "0 = 2" copies.
func (p *Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v by %v: %d ranks, root %d, %d chunks, %d slots, %d rounds\n",
		p.Op, p.Algorithm, p.Ranks, p.Root, p.Chunks, p.Slots, p.Rounds)
	for rank, steps := range p.Steps {
		fmt.Fprintf(&b, "rank %d\n", rank)
		for i, s := range steps {
			if i == 0 || s.Round != steps[i-1].Round {
				fmt.Fprintf(&b, "  %d: %v", s.Round, s)
			} else {
				fmt.Fprintf(&b, "; %v", s)
			}
			if i == len(steps)-1 || s.Round != steps[i+1].Round {
				b.WriteByte('\n')
			}
		}
	}
	return b.String()
}

// String is the step as [Plan.String] prints it.
func (s Step) String() string {
	slot := strconv.Itoa(s.Slot)
	if s.Slot != s.Chunk {
		slot += "[" + strconv.Itoa(s.Chunk) + "]"
	}
	switch s.Action {
	case Send:
		return fmt.Sprintf("send %s to %d", slot, s.Peer)
	case Receive:
		return fmt.Sprintf("receive %s from %d", slot, s.Peer)
	case Add:
		return fmt.Sprintf("%s += %d", slot, s.From)
	case Copy:
		return fmt.Sprintf("%s = %d", slot, s.From)
	}
	return fmt.Sprintf("%v %s", s.Action, slot)
}

// Parse reads a plan as [Plan.String] prints it. The error says which line is at
// fault. A plan that it returns can be carried out: its messages all have their
// receivers. Whether it computes the right thing is for [Plan.Prove].
func Parse(text string) (*Plan, error) {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	p, err := parseHeader(lines[0])
	if err != nil {
		return nil, err
	}
	for i, line := range lines[1:] {
		if rank, ok := strings.CutPrefix(line, "rank "); ok {
			if rank != strconv.Itoa(len(p.Steps)) {
				return nil, fmt.Errorf("plan: line %d: rank %q, want %d", i+2, rank, len(p.Steps))
			}
			p.Steps = append(p.Steps, nil)
			continue
		}
		if len(p.Steps) == 0 {
			return nil, fmt.Errorf("plan: line %d: %q before the line \"rank 0\"", i+2, line)
		}
		steps, err := parseRound(line)
		if err != nil {
			return nil, fmt.Errorf("plan: line %d: %w", i+2, err)
		}
		rank := len(p.Steps) - 1
		if had := p.Steps[rank]; len(had) > 0 && had[len(had)-1].Round >= steps[0].Round {
			return nil, fmt.Errorf("plan: line %d: round %d after round %d", i+2, steps[0].Round, had[len(had)-1].Round)
		}
		p.Steps[rank] = append(p.Steps[rank], steps...)
	}
	return p, p.check()
}

func parseHeader(line string) (*Plan, error) {
	title, sizes, _ := strings.Cut(line, ": ")
	op, algorithm, _ := strings.Cut(title, " by ")
	o, a := slices.Index(opNames, op), slices.Index(algorithmNames, algorithm)
	if o < 0 || a < 0 {
		return nil, fmt.Errorf("plan: line 1: %q is not an operation by an algorithm, such as \"all-reduce by ring\"", title)
	}
	p := &Plan{Op: Op(o), Algorithm: Algorithm(a)}
	for i, want := range []struct {
		text string // with # for the number
		at   *int
	}{{"# ranks", &p.Ranks}, {"root #", &p.Root}, {"# chunks", &p.Chunks}, {"# slots", &p.Slots},
		{"# rounds", &p.Rounds}} {
		var field string
		field, sizes, _ = strings.Cut(sizes, ", ")
		before, after, _ := strings.Cut(want.text, "#")
		n, err := number(strings.TrimSuffix(strings.TrimPrefix(field, before), after))
		if err != nil || field != before+strconv.Itoa(n)+after {
			return nil, fmt.Errorf("plan: line 1: %q in place %d, want %q with a number", field, i+1, want.text)
		}
		*want.at = n
	}
	if sizes != "" {
		return nil, fmt.Errorf("plan: line 1: %q after the rounds", sizes)
	}
	return p, nil
}

// parseRound reads the steps of one line; there is at least one.
func parseRound(line string) ([]Step, error) {
	head, list, ok := strings.Cut(line, ": ")
	head, indented := strings.CutPrefix(head, "  ")
	round, err := number(head)
	if !ok || !indented || err != nil {
		return nil, fmt.Errorf("%q, want a round and its steps, such as \"  0: send 1 to 2\"", line)
	}
	var steps []Step
	for text := range strings.SplitSeq(list, "; ") {
		s, err := parseStep(text)
		if err != nil {
			return nil, err
		}
		s.Round = round
		steps = append(steps, s)
	}
	return steps, nil
}

func parseStep(text string) (Step, error) {
	for _, form := range []struct {
		action         Action
		prefix, middle string
	}{{Send, "send ", " to "}, {Receive, "receive ", " from "}, {Add, "", " += "}, {Copy, "", " = "}} {
		rest, ok := strings.CutPrefix(text, form.prefix)
		place, last, found := strings.Cut(rest, form.middle)
		if !ok || !found {
			continue
		}
		s := Step{Action: form.action}
		other := &s.From
		if form.action <= Receive {
			other = &s.Peer
		}
		slot, chunk, apart := strings.Cut(strings.TrimSuffix(place, "]"), "[")
		if !apart {
			chunk = slot
		}
		for _, want := range []struct {
			text string
			at   *int
		}{{slot, &s.Slot}, {chunk, &s.Chunk}, {last, other}} {
			n, err := number(want.text)
			if err != nil {
				return s, fmt.Errorf("step %q: %w", text, err)
			}
			*want.at = n
		}
		if s.String() != text {
			return s, fmt.Errorf("step %q: want %q", text, s)
		}
		return s, nil
	}
	return Step{}, fmt.Errorf("step %q: want send, receive, += or =", text)
}

// number reads a whole number from 0 on.
func number(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q is not a whole number from 0 on", text)
	}
	return n, nil
}
