package schedule

import (
	"fmt"
	"strconv"
	"strings"
)

// String is the schedule as text, which [Parse] reads:
//
//	schedule 1f1b stages=2 microbatches=2 every=2 weights=flush
//	rank 0: 0F0 0F1 0B0 0B1 0U1
//	rank 1: 1F0 1B0 1F1 1B1 1U1
//
// A name that is not made of letters, digits and -_.+/ alone is quoted as in Go.
func (s Schedule) String() string {
	var b strings.Builder
	fmt.Fprintln(&b, s.header())
	for r, list := range s.Ranks {
		fmt.Fprintf(&b, "rank %d:", r)
		for _, a := range list {
			b.WriteByte(' ')
			b.WriteString(a.String())
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// header is the first line: all but the ranks' lists.
func (s Schedule) header() string {
	name := s.Name
	if !plain(name) {
		name = strconv.Quote(name)
	}
	return fmt.Sprintf("schedule %s stages=%d microbatches=%d every=%d weights=%s",
		name, s.Stages, s.Microbatches, s.Every, s.Weights)
}

// Parse reads what String wrote; hand-written text may have blank lines and lines that begin with #, and leave out what
// follows the name: stages and microbatches are then one more than the largest in the lists, every is all micro-batches,
// and weights is flush. The ranks must be there in their order. Whether the schedule can be run is for [Schedule.Check] to
// say. Errors have the line's number.
func Parse(text string) (Schedule, error) {
	var s Schedule
	headed, size := false, 0
	for n, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		err := func() error {
			if !headed {
				headed = true
				return s.parseHeader(line)
			}
			head, list, ok := strings.Cut(line, ":")
			if want := fmt.Sprintf("rank %d", len(s.Ranks)); !ok || strings.Join(strings.Fields(head), " ") != want {
				return fmt.Errorf("%.40q: want the list of the next rank, %q", line, want+": 0F0 …")
			}
			words := strings.Fields(list)
			if err := allow(&size, 1+len(words)); err != nil {
				return err
			}
			parsed, err := parseActions(words)
			s.Ranks = append(s.Ranks, parsed)
			return err
		}()
		if err != nil {
			return Schedule{}, fmt.Errorf("schedule: line %d: %w", n+1, err)
		}
	}
	if !headed {
		return Schedule{}, fmt.Errorf("schedule: the text is empty: want a line %q first", "schedule NAME")
	}
	s.infer()
	return s, nil
}

// parseHeader reads the first line.
func (s *Schedule) parseHeader(line string) error {
	rest, ok := strings.CutPrefix(line, "schedule ")
	if !ok {
		return fmt.Errorf("%.40q: want %q", line, "schedule NAME stages=4 …")
	}
	rest = strings.TrimSpace(rest)
	if quoted, err := strconv.QuotedPrefix(rest); err == nil && quoted[0] == '"' {
		s.Name, _ = strconv.Unquote(quoted) // QuotedPrefix has checked it
		rest = rest[len(quoted):]
	} else {
		s.Name, rest, _ = strings.Cut(rest, " ")
		if !plain(s.Name) {
			return fmt.Errorf("name %.40q: quote a name that has other than letters, digits and -_.+/", s.Name)
		}
	}
	for _, field := range strings.Fields(rest) {
		key, value, _ := strings.Cut(field, "=")
		number := map[string]*int{"stages": &s.Stages, "microbatches": &s.Microbatches, "every": &s.Every}[key]
		switch {
		case number != nil:
			n, err := parseNumber(value)
			if err != nil || n == 0 {
				return fmt.Errorf("%.40q: want %s=N with N from 1 to %d", field, key, maxActions)
			}
			*number = n
		case key == "weights":
			switch s.Weights = Weights(value); s.Weights {
			case Flush, Stash, Vertical, Double:
			default:
				return fmt.Errorf("%.40q: want weights=%s, %s, %s or %s", field, Flush, Stash, Vertical, Double)
			}
		default:
			return fmt.Errorf("%.40q: want stages=N, microbatches=N, every=N or weights=W", field)
		}
	}
	return nil
}

// plain tells whether a name need not be quoted.
func plain(name string) bool {
	for _, c := range name {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.ContainsRune("-_.+/", c):
		default:
			return false
		}
	}
	return name != ""
}

// infer fills in what the header left out.
func (s *Schedule) infer() {
	stages, microbatches := 1, 1
	for _, list := range s.Ranks {
		for _, a := range list {
			stages, microbatches = max(stages, a.Stage+1), max(microbatches, a.Microbatch+1)
		}
	}
	if s.Stages == 0 {
		s.Stages = stages
	}
	if s.Microbatches == 0 {
		s.Microbatches = microbatches
	}
	if s.Every == 0 {
		s.Every = s.Microbatches
	}
	if s.Weights == "" {
		s.Weights = Flush
	}
}

// allow counts actions and ranks, and limits them.
func allow(size *int, more int) error {
	if *size += more; *size > maxActions {
		return fmt.Errorf("more than %d ranks and actions", maxActions)
	}
	return nil
}

// parseActions reads a rank's list.
func parseActions(words []string) (list []Action, err error) {
	for i, word := range words {
		a, err := parseAction(word)
		if err != nil {
			return nil, fmt.Errorf("position %d: %w", i, err)
		}
		list = append(list, a)
	}
	return list, nil
}

// parseAction reads an action such as 2F0.
func parseAction(word string) (Action, error) {
	if i := strings.IndexAny(word, "FBIWU"); i >= 0 {
		stage, err := parseNumber(word[:i])
		microbatch, err2 := parseNumber(word[i+1:])
		if err == nil && err2 == nil {
			return Action{Pass(word[i]), stage, microbatch}, nil
		}
	}
	return Action{}, fmt.Errorf("%.40q: want stage, pass (F, B, I, W or U) and micro-batch as in 2F0", word)
}

// parseNumber reads digits alone, and no number that no schedule can have.
func parseNumber(text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 31) // which takes no sign
	if err == nil && n > maxActions {
		err = strconv.ErrRange
	}
	return int(n), err
}
