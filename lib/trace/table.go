package trace

import (
	"cmp"
	"slices"
	"time"
)

// AllRanks is the rank of a [Row] that adds up what all ranks did. Ranks count from 0.
const AllRanks = -1

// Row is what the spans of one name on one stream come to.
type Row struct {
	Rank            int // or AllRanks
	Stream, Name    string
	Calls           int
	Total, Min, Max time.Duration // of the spans' lengths; one that ends before it starts counts as 0 long
	// Share is the part of the time in which the stream did anything, on the row's ranks, that one of these spans ran
	// in. The rows of a stream whose spans do not overlap add up to 1.
	Share float64
	Work  // of all calls
}

// Mean is the total time by the calls.
func (r Row) Mean() time.Duration { return r.Total / time.Duration(max(1, r.Calls)) }

// Table is what the operations of a trace come to, the one of the longest total time first.
type Table []Row

// Table adds up the spans of each stream and name, over all ranks.
func (t Trace) Table() Table {
	return table(t.Spans, func(int) int { return AllRanks })
}

// TableByRank is [Trace.Table] with a row for each rank.
func (t Trace) TableByRank() Table {
	return table(t.Spans, func(rank int) int { return rank })
}

func table(spans []Span, group func(rank int) int) Table {
	type key struct {
		rank         int
		stream, name string
	}
	of, stream := map[key][]Span{}, map[key][]Span{}
	for _, s := range spans {
		rank := group(s.Rank)
		row, all := key{rank, s.Stream, s.Name}, key{rank, s.Stream, ""}
		of[row], stream[all] = append(of[row], s), append(stream[all], s)
	}
	busy := map[key]time.Duration{}
	for key, spans := range stream {
		busy[key] = busyOfRanks(spans)
	}
	var rows Table
	for k, spans := range of {
		row := Row{Rank: k.rank, Stream: k.stream, Name: k.name, Calls: len(spans)}
		for i, s := range spans {
			took := max(0, s.End-s.Start)
			row.Total, row.Max = row.Total+took, max(row.Max, took)
			if i == 0 || took < row.Min {
				row.Min = took
			}
			row.FLOPs, row.Bytes = row.FLOPs+s.FLOPs, row.Bytes+s.Bytes
		}
		if all := busy[key{k.rank, k.stream, ""}]; all > 0 {
			row.Share = float64(busyOfRanks(spans)) / float64(all)
		}
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b Row) int {
		return cmp.Or(-cmp.Compare(a.Total, b.Total),
			cmp.Compare(a.Stream, b.Stream), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Rank, b.Rank))
	})
	return rows
}

// busyOfRanks is [Busy] of each rank's spans, added up.
func busyOfRanks(ofStream []Span) (total time.Duration) {
	for _, spans := range byStream(ofStream) {
		total += Busy(spans)
	}
	return total
}

// Top returns the first n rows, or all if there are fewer.
func (t Table) Top(n int) Table { return t[:max(0, min(n, len(t)))] }
