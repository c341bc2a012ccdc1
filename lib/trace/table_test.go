package trace_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shardbook/shardbook/lib/trace"
	"gonum.org/v1/gonum/floats/scalar"
)

// A step of two ranks: one is slower, so that the other waits.
func step() trace.Trace {
	const ms = time.Millisecond
	return trace.Trace{
		Spans: []trace.Span{
			{Rank: 0, Stream: trace.Compute, Name: "forward", Start: 0, End: 2 * ms, Work: trace.Work{FLOPs: 8e9, Bytes: 4e7}},
			{Rank: 0, Stream: trace.Compute, Name: "backward", Start: 2 * ms, End: 6 * ms, Work: trace.Work{FLOPs: 16e9, Bytes: 8e7}},
			{Rank: 0, Stream: trace.Reduce, Name: "gradients", Start: 4 * ms, End: 9 * ms, Work: trace.Work{Bytes: 2e6}},
			{Rank: 0, Stream: trace.Wait, Name: "gradients", Start: 6 * ms, End: 9 * ms},
			{Rank: 1, Stream: trace.Compute, Name: "forward", Start: 0, End: 3 * ms, Work: trace.Work{FLOPs: 8e9, Bytes: 4e7}},
			{Rank: 1, Stream: trace.Compute, Name: "backward", Start: 3 * ms, End: 8 * ms, Work: trace.Work{FLOPs: 16e9, Bytes: 8e7}},
			{Rank: 1, Stream: trace.Reduce, Name: "gradients", Start: 6 * ms, End: 9 * ms, Work: trace.Work{Bytes: 2e6}},
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
	t := step().Table()
	fmt.Print(t)
	fmt.Println()
	fmt.Print(step().TableByRank().Top(2))
	// Output:
	// stream   name       calls  total ms  mean ms  min ms  max ms  share %  GFLOP/s    GB/s
	// compute  backward       2     9.000    4.500   4.000   5.000     64.3     3556   17.78
	// reduce   gradients      2     8.000    4.000   3.000   5.000    100.0        0  0.5000
	// compute  forward        2     5.000    2.500   2.000   3.000     35.7     3200   16.00
	// wait     gradients      2     4.000    2.000   1.000   3.000    100.0        0       0
	//
	// rank  stream   name       calls  total ms  mean ms  min ms  max ms  share %  GFLOP/s    GB/s
	// 1     compute  backward       1     5.000    5.000   5.000   5.000     62.5     3200   16.00
	// 0     reduce   gradients      1     5.000    5.000   5.000   5.000    100.0        0  0.4000
}

// The table against one that looks at every tick of every rank, row by row.
func TestTable(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 10))
	for range 300 {
		all := someTrace(random)
		for _, byRank := range []bool{false, true} {
			table := all.Table()
			if byRank {
				table = all.TableByRank()
			}
			seen := map[string]bool{}
			calls := 0
			for i, row := range table {
				if key := fmt.Sprint(row.Rank, row.Stream, row.Name); seen[key] {
					t.Fatalf("two rows of %s", key)
				} else {
					seen[key] = true
				}
				if i > 0 && row.Total > table[i-1].Total {
					t.Fatalf("row %d is not in order", i)
				}
				calls += row.Calls
				in := func(s trace.Span) bool { return (!byRank || s.Rank == row.Rank) && s.Stream == row.Stream }
				want := trace.Row{Rank: trace.AllRanks, Stream: row.Stream, Name: row.Name}
				if byRank {
					want.Rank = row.Rank
				}
				var lengths []time.Duration
				busy, busyOfRow := map[string]bool{}, map[string]bool{}
				for _, s := range all.Spans {
					if !in(s) {
						continue
					}
					for at := s.Start; at < s.End; at++ {
						busy[fmt.Sprint(s.Rank, at)] = true
						if s.Name == row.Name {
							busyOfRow[fmt.Sprint(s.Rank, at)] = true
						}
					}
					if s.Name == row.Name {
						lengths = append(lengths, s.End-s.Start)
						want.Total += s.End - s.Start
						want.FLOPs += s.FLOPs
						want.Bytes += s.Bytes
					}
				}
				want.Calls, want.Min, want.Max = len(lengths), slices.Min(lengths), slices.Max(lengths)
				share := float64(len(busyOfRow)) / float64(cmp.Or(len(busy), 1))
				if !scalar.EqualWithinAbs(row.Share, share, 1e-12) {
					t.Fatalf("%+v has the share %v, want %v", row, row.Share, share)
				}
				want.Share = row.Share
				if row != want {
					t.Fatalf("row %+v, want %+v", row, want)
				}
				if mean := want.Total / time.Duration(want.Calls); row.Mean() != mean {
					t.Fatalf("the mean of %+v is %v", row, row.Mean())
				}
			}
			if calls != len(all.Spans) {
				t.Fatalf("%d calls of %d spans", calls, len(all.Spans))
			}
		}
	}
}

func TestTableText(t *testing.T) {
	if got := (trace.Table{}).String(); strings.Count(got, "\n") != 1 || !strings.HasPrefix(got, "stream") {
		t.Errorf("an empty table is %q", got)
	}
	if err := (trace.Table{}).Chart("none").Err(); err != nil {
		t.Error(err)
	}
	table := step().Table()
	if got := len(table.Top(-1)) + len(table.Top(100)); got != len(table) {
		t.Errorf("%d rows in the tops of -1 and 100", got)
	}
	odd := trace.Table{
		{Rank: trace.AllRanks, Stream: "s\n1", Name: "näme", Total: 1, Work: trace.Work{Bytes: 1}},
		{Rank: 3, Stream: "", Name: "x", Total: 3e18, Calls: 2, Work: trace.Work{Bytes: 1}},
		{Rank: 4, Work: trace.Work{Bytes: 5}},
	}
	want := "" +
		"rank  stream  name  calls       total ms        mean ms  min ms  max ms  share %    GB/s\n" +
		"all   s 1     näme      0       0.000001       0.000001       0       0      0.0   1.000\n" +
		"3             x         2  3000000000000  1500000000000       0       0      0.0  0.0000\n" +
		"4                       0              0              0       0       0      0.0        \n"
	if got := odd.String(); got != want {
		t.Errorf("the table is\n%s, want\n%s", got, want)
	}
}
