package group

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// Record is one operation of one rank in its flight recorder.
type Record struct {
	Group   string    // the sub-group; "" for a group that was not split off
	Seq     uint64    // as in Failure
	Call    Call      // without its buffers' memory
	Started time.Time //
	Ended   time.Time // zero while the operation runs
	Err     string    // "" if it succeeded
}

// String describes the operation, such as "all-reduce #12 (sum of 1024 float32)".
func (r Record) String() string {
	s := fmt.Sprintf("%v #%d", r.Call.Kind, r.Seq)
	if r.Group != "" {
		s += " of " + r.Group
	}
	return s + r.Call.details()
}

// String describes the call, such as "all-reduce (sum of 1024 float32)".
func (c *Call) String() string { return c.Kind.String() + c.details() }

// details are the elements, reduction and peer: " (sum of 1024 float32 to rank 0)".
func (c *Call) details() string {
	if c.Kind == KindBarrier || c.Kind == KindSplit {
		return ""
	}
	what := fmt.Sprintf("%d %v", c.Elements(), c.Type)
	switch c.Kind {
	case KindSend, KindReduce, KindGather:
		what += fmt.Sprintf(" to rank %d", c.Peer)
	case KindRecv, KindBroadcast, KindScatter:
		what += fmt.Sprintf(" from rank %d", c.Peer)
	}
	if c.reduces() {
		what = fmt.Sprintf("%v of %s", c.Op, what)
	}
	return " (" + what + ")"
}

// Recorder is a rank's flight recorder: a ring buffer of its last operations. It is for
// implementations of [Group], and may be used by several goroutines.
type Recorder struct {
	mu      sync.Mutex
	records []Record
	next    uint64
}

// NewRecorder returns a recorder of the last 64 operations.
func NewRecorder() *Recorder { return &Recorder{records: make([]Record, 64)} }

// Begin records the start of an operation and returns its number, for End. The group is the name of a sub-group, or "".
func (r *Recorder) Begin(group string, seq uint64, call Call, started time.Time) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	call.In.Data, call.Out.Data, call.InCounts, call.OutCounts, call.split = nil, nil, nil, nil, nil
	r.records[r.next%uint64(len(r.records))] = Record{Group: group, Seq: seq, Call: call, Started: started}
	r.next++
	return r.next - 1
}

// End records the end of operation number, if it is still in the recorder.
func (r *Recorder) End(number uint64, err error) {
	ended := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if number+uint64(len(r.records)) < r.next {
		return
	}
	record := &r.records[number%uint64(len(r.records))]
	record.Ended = ended
	if err != nil {
		record.Err = err.Error()
	}
}

// Records returns the operations in the recorder, oldest first.
func (r *Recorder) Records() []Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	size := uint64(len(r.records))
	kept := make([]Record, 0, min(size, r.next))
	for i := r.next - min(size, r.next); i < r.next; i++ {
		kept = append(kept, r.records[i%size])
	}
	return kept
}

// WriteRecords writes a rank's operations as text, one per line: the time it started,
// the operation, and how long it took or that it is still running.
func WriteRecords(w io.Writer, rank int, records []Record) error {
	var text strings.Builder
	if len(records) == 0 {
		fmt.Fprintf(&text, "rank %d: no calls\n", rank)
	}
	for _, r := range records {
		fmt.Fprintf(&text, "rank %d: %s %v", rank, r.Started.Format("15:04:05.000000"), r)
		if r.Ended.IsZero() {
			text.WriteString(": running\n")
			continue
		}
		fmt.Fprintf(&text, ": %v", r.Ended.Sub(r.Started))
		if r.Err != "" {
			fmt.Fprintf(&text, ": %s", r.Err)
		}
		text.WriteString("\n")
	}
	_, err := io.WriteString(w, text.String())
	return err
}
