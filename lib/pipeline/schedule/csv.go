package schedule

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// maxCSV is the longest CSV file that is read, in bytes.
const maxCSV = 16 << 20

// WriteCSV writes the schedule as PyTorch's pipelining does (its schedules have _dump_csv): a record for each rank, a cell
// for each action, as in 0F0,0F1,0B0. A comment line, "# schedule …", comes first, with what that cannot say.
func (s Schedule) WriteCSV(w io.Writer) error {
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, "# %s\n", s.header()) // an error comes back from Flush
	for _, list := range s.Ranks {
		for i, a := range list {
			if i > 0 {
				out.WriteByte(',')
			}
			out.WriteString(a.String())
		}
		if len(list) == 0 {
			out.WriteString(`""`) // blank lines are no records
		}
		out.WriteByte('\n')
	}
	return out.Flush()
}

// ReadCSV reads what WriteCSV wrote, and what PyTorch did. Empty cells, in which a rank is idle, are skipped, and so are the
// communication and the sharding in PyTorch's lowered schedules (SEND_F, RECV_B, UNSHARD, …), which [Schedule.Programs]
// makes anew. A pair such as (0F1;3B0)OVERLAP_F_B is one pass after the other. Without the line "# schedule …" there are
// as many stages and micro-batches as the cells name, weights are [Flush], and updates are appended if there are none.
// Whether the schedule can be run is for [Schedule.Check] to say. Errors have the line's number.
func ReadCSV(r io.Reader) (Schedule, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxCSV+1))
	if err != nil {
		return Schedule{}, fmt.Errorf("schedule: reading CSV: %w", err)
	}
	if len(text) > maxCSV {
		return Schedule{}, fmt.Errorf("schedule: the CSV is longer than %d bytes", maxCSV)
	}
	f := csvFile{}
	for line := range strings.Lines(string(text)) {
		f.lines++
		if err := f.read(strings.TrimSpace(line)); err != nil {
			return Schedule{}, fmt.Errorf("schedule: line %d: %w", f.lines, err)
		}
	}
	if len(f.s.Ranks) == 0 {
		return Schedule{}, errors.New("schedule: the CSV has no records: want one for each rank, as in 0F0,0F1,0B0")
	}
	f.s.infer()
	if !f.headed && !f.updates {
		f.s.flush()
	}
	return f.s, nil
}

// csvFile is what has been read so far.
type csvFile struct {
	s               Schedule
	lines, size     int
	headed, updates bool // whether there was a line "# schedule …", and any update
}

// read reads a line.
func (f *csvFile) read(line string) error {
	if line == "" {
		return nil
	}
	if comment, ok := strings.CutPrefix(line, "#"); ok {
		comment = strings.TrimSpace(comment)
		if f.headed || len(f.s.Ranks) > 0 || !strings.HasPrefix(comment, "schedule ") {
			return nil
		}
		f.headed = true
		return f.s.parseHeader(comment)
	}
	var list []Action
	for cell := range strings.SplitSeq(line, ",") {
		passes, err := parseCell(cell)
		if err != nil {
			return fmt.Errorf("rank %d: %w", len(f.s.Ranks), err)
		}
		if err := allow(&f.size, len(passes)); err != nil {
			return err
		}
		list = append(list, passes...)
		f.updates = f.updates || slices.ContainsFunc(passes, func(a Action) bool { return a.Pass == Update })
	}
	f.s.Ranks = append(f.s.Ranks, list)
	return allow(&f.size, 1)
}

// lowered is what PyTorch's lowered schedules have besides passes.
var lowered = regexp.MustCompile(`^\d+(UNSHARD|RESHARD|REDUCE_GRAD|SEND_F|RECV_F|SEND_B|RECV_B)\d*$`)

// parseCell reads the passes in a cell: none, one, or those of a pair.
func parseCell(cell string) (passes []Action, err error) {
	cell = strings.Trim(cell, "\" \t")
	if cell == "" {
		return nil, nil
	}
	if pair, ok := strings.CutSuffix(cell, ")OVERLAP_F_B"); ok && strings.HasPrefix(pair, "(") {
		for one := range strings.SplitSeq(pair[1:], ";") {
			a, err := parseAction(strings.TrimSpace(one))
			if err != nil {
				return nil, err
			}
			passes = append(passes, a)
		}
		return passes, nil
	}
	a, err := parseAction(cell)
	if err != nil && lowered.MatchString(cell) {
		return nil, nil
	}
	return []Action{a}, err
}
