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
	b.WriteString(p.header() + "\n")
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

const sizesFormat = "%d ranks, root %d, %d chunks, %d slots, %d rounds"

func (p *Plan) header() string {
	return fmt.Sprintf("%v by %v: "+sizesFormat, p.Op, p.Algorithm, p.Ranks, p.Root, p.Chunks, p.Slots, p.Rounds)
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

// Parse reads a plan as [Plan.String] prints it. The error says which line is wrong. The plan that it returns can be
// carried out: every message has its receiver. Whether it computes the right result is checked by [Plan.Prove].
func Parse(text string) (*Plan, error) {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	p, err := parseHeader(lines[0])
	if err != nil {
		return nil, fmt.Errorf("plan: line 1: %w", err)
	}
	for i, line := range lines[1:] {
		if err := p.parseLine(line); err != nil {
			return nil, fmt.Errorf("plan: line %d: %w", i+2, err)
		}
	}
	return p, p.check()
}

func parseHeader(line string) (*Plan, error) {
	title, sizes, _ := strings.Cut(line, ": ")
	op, algorithm, _ := strings.Cut(title, " by ")
	o, a := slices.Index(opNames, op), slices.Index(algorithmNames, algorithm)
	if o < 0 || a < 0 {
		return nil, fmt.Errorf("%q is not an operation by an algorithm, such as \"all-reduce by ring\"", title)
	}
	p := &Plan{Op: Op(o), Algorithm: Algorithm(a)}
	fmt.Sscanf(sizes, sizesFormat, &p.Ranks, &p.Root, &p.Chunks, &p.Slots, &p.Rounds)
	if p.header() != line {
		return nil, fmt.Errorf("%q, want such as %q", sizes, fmt.Sprintf(sizesFormat, 2, 0, 2, 3, 2))
	}
	return p, nil
}

// parseLine reads a line that begins a rank, or has the steps of a round.
func (p *Plan) parseLine(line string) error {
	if rank, ok := strings.CutPrefix(line, "rank "); ok {
		if rank != strconv.Itoa(len(p.Steps)) {
			return fmt.Errorf("rank %q, want %d", rank, len(p.Steps))
		}
		p.Steps = append(p.Steps, nil)
		return nil
	}
	if len(p.Steps) == 0 {
		return fmt.Errorf("%q before the line \"rank 0\"", line)
	}
	head, list, _ := strings.Cut(line, ": ")
	round, err := strconv.Atoi(strings.TrimPrefix(head, "  "))
	if err != nil || head != fmt.Sprintf("  %d", round) {
		return fmt.Errorf("%q, want a round and its steps, such as \"  0: send 1 to 2\"", line)
	}
	steps := &p.Steps[len(p.Steps)-1]
	if had := *steps; len(had) > 0 && had[len(had)-1].Round >= round {
		return fmt.Errorf("round %d after round %d", round, had[len(had)-1].Round)
	}
	for text := range strings.SplitSeq(list, "; ") {
		s, err := parseStep(text)
		if err != nil {
			return err
		}
		s.Round = round
		*steps = append(*steps, s)
	}
	return nil
}

func parseStep(text string) (Step, error) {
	for _, form := range []struct {
		action Action
		format string
	}{{Send, "send %s to %d"}, {Receive, "receive %s from %d"}, {Add, "%s += %d"}, {Copy, "%s = %d"}} {
		s, slot, other := Step{Action: form.action}, "", 0
		if n, _ := fmt.Sscanf(text, form.format, &slot, &other); n < 2 {
			continue
		}
		if form.action <= Receive {
			s.Peer = other
		} else {
			s.From = other
		}
		if n, _ := fmt.Sscanf(slot, "%d[%d]", &s.Slot, &s.Chunk); n < 2 {
			s.Chunk = s.Slot
		}
		if s.String() == text {
			return s, nil
		}
	}
	return Step{}, fmt.Errorf("step %q: want such as \"send 1 to 2\", \"receive 2[0] from 1\", \"0 += 2\" or \"0 = 2\"",
		text)
}
