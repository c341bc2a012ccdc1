package trace_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/shardbook/shardbook/lib/trace"
	"gonum.org/v1/gonum/floats/scalar"
)

// A step of two ranks: one is slower, so that the other waits.
func step() trace.Trace {
	const ms = time.Millisecond
	once, twice := trace.Work{FLOPs: 8e9, Bytes: 4e7}, trace.Work{FLOPs: 16e9, Bytes: 8e7}
	return trace.Trace{
		Spans: []trace.Span{
			{Rank: 0, Stream: "compute", Name: "forward", Start: 0, End: 2 * ms, Work: once},
			{Rank: 0, Stream: "compute", Name: "backward", Start: 2 * ms, End: 6 * ms, Work: twice},
			{Rank: 0, Stream: trace.Reduce, Name: "gradients", Start: 4 * ms, End: 9 * ms,
				Work: trace.Work{Bytes: 2e6}},
			{Rank: 0, Stream: trace.Wait, Name: "gradients", Start: 6 * ms, End: 9 * ms},
			{Rank: 1, Stream: "compute", Name: "forward", Start: 0, End: 3 * ms, Work: once},
			{Rank: 1, Stream: "compute", Name: "backward", Start: 3 * ms, End: 8 * ms, Work: twice},
			{Rank: 1, Stream: trace.Reduce, Name: "gradients", Start: 6 * ms, End: 9 * ms,
				Work: trace.Work{Bytes: 2e6}},
			{Rank: 1, Stream: trace.Wait, Name: "gradients", Start: 8 * ms, End: 9 * ms},
		},
		Counters: []trace.Counter{
			{Rank: 0, Name: "live", At: 0, Value: 40e6}, {Rank: 1, Name: "live", At: 0, Value: 40e6},
			{Rank: 0, Name: "live", At: 2 * ms, Value: 90e6}, {Rank: 1, Name: "live", At: 3 * ms, Value: 80e6},
			{Rank: 0, Name: "live", At: 6 * ms, Value: 40e6}, {Rank: 1, Name: "live", At: 8 * ms, Value: 40e6},
		},
	}
}

func ExampleTrace_Table() {
	fmt.Print(step().Table().Chart("").Text())
	// Output:
	// stream   name       calls  total ms  mean ms  min ms  max ms  share %  GFLOP/s     MB    GB/s
	// compute  backward       2     9.000    4.500   4.000   5.000     64.3     3556  160.0   17.78
	// reduce   gradients      2     8.000    4.000   3.000   5.000    100.0        0  4.000  0.5000
	// compute  forward        2     5.000    2.500   2.000   3.000     35.7     3200  80.00   16.00
	// wait     gradients      2     4.000    2.000   1.000   3.000    100.0        0      0       0
}

// The table against one that looks at every tick of every rank, row by row.
func TestTable(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 10))
	for range 300 {
		all := someTrace(random)
		table := all.Table()
		seen := map[string]bool{}
		calls := 0
		for i, row := range table {
			if key := fmt.Sprint(row.Stream, row.Name); seen[key] || i > 0 && row.Total > table[i-1].Total {
				t.Fatalf("row %d, of %s, is there twice or not in order", i, key)
			} else {
				seen[key] = true
			}
			calls += row.Calls
			want := trace.Row{Stream: row.Stream, Name: row.Name}
			var lengths []time.Duration
			var details []string
			busy, busyOfRow := map[string]bool{}, map[string]bool{}
			for _, s := range all.Spans {
				if s.Stream != row.Stream {
					continue
				}
				for at := s.Start; at < s.End; at++ {
					busy[fmt.Sprint(s.Rank, at)] = true
					if s.Name == row.Name {
						busyOfRow[fmt.Sprint(s.Rank, at)] = true
					}
				}
				if s.Name == row.Name {
					details = append(details, s.Detail)
					lengths = append(lengths, s.End-s.Start)
					want.Total += s.End - s.Start
					want.FLOPs += s.FLOPs
					want.Bytes += s.Bytes
				}
			}
			want.Calls, want.Min, want.Max = len(lengths), slices.Min(lengths), slices.Max(lengths)
			if want.Detail = details[0]; len(slices.Compact(slices.Sorted(slices.Values(details)))) > 1 {
				want.Detail = "several"
			}
			want.Share = float64(len(busyOfRow)) / float64(cmp.Or(len(busy), 1))
			if scalar.EqualWithinAbs(row.Share, want.Share, 1e-12) {
				row.Share = want.Share
			}
			if row != want || row.Mean() != want.Total/time.Duration(want.Calls) {
				t.Fatalf("row %+v of mean %v, want %+v", row, row.Mean(), want)
			}
		}
		if calls != len(all.Spans) {
			t.Fatalf("%d calls of %d spans", calls, len(all.Spans))
		}
	}
}

func TestTableText(t *testing.T) {
	if err := (trace.Table{}).Chart("none").Err(); err != nil {
		t.Error(err)
	}
	table := step().Table()
	if got := len(table.Top(-1)) + len(table.Top(100)); got != len(table) {
		t.Errorf("%d rows in the tops of -1 and 100", got)
	}
	odd := trace.Table{
		{Stream: "s\n1", Name: "näme", Total: 1, Work: trace.Work{Bytes: 1}, Detail: "a\nb"},
		{Stream: "", Name: "x", Total: 3e18, Calls: 2, Work: trace.Work{Bytes: 1}},
		{Work: trace.Work{Bytes: 5}},
	}
	want := "" +
		"stream  name  calls       total ms        mean ms  min ms  max ms  share %        MB  GB/s    detail\n" +
		"s 1     näme      0       0.000001       0.000001       0       0      0.0  0.000001  1.000   a b\n" +
		"        x         2  3000000000000  1500000000000       0       0      0.0  0.000001  0.0000\n" +
		"                  0              0              0       0       0      0.0  0.000005\n"
	if got := odd.Chart("").Text(); got != want {
		t.Errorf("the table is\n%s, want\n%s", got, want)
	}
}
