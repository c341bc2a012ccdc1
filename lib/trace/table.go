package trace

import (
	"cmp"
	"slices"
	"time"
)

// Row has the statistics of the spans with one name on one stream.
type Row struct {
	Stream, Name    string
	Calls           int
	Total, Min, Max time.Duration // of the spans' lengths; one that ends before it starts counts as 0 long
	// Share is the fraction of the stream's busy time in which one of these spans ran. Without overlapping spans, the
	// shares of a stream sum to 1.
	Share float64
	Work  // of all calls
	// Detail is that of the spans, if all have the same; else "several".
	Detail string
}

// Mean is the average time of a call.
func (r Row) Mean() time.Duration { return r.Total / time.Duration(max(1, r.Calls)) }

// Table lists the operations of a trace, sorted by total time, the longest first.
type Table []Row

// Table sums the spans of each stream and name over all ranks.
func (t Trace) Table() Table {
	type key struct{ stream, name string }
	of, stream := map[key][]Span{}, map[string][]Span{}
	for _, s := range t.Spans {
		k := key{s.Stream, s.Name}
		of[k], stream[s.Stream] = append(of[k], s), append(stream[s.Stream], s)
	}
	busy := map[string]time.Duration{}
	for name, spans := range stream {
		busy[name] = busyOfRanks(spans)
	}
	var rows Table
	for k, spans := range of {
		row := Row{Stream: k.stream, Name: k.name, Calls: len(spans)}
		for i, s := range spans {
			took := max(0, s.End-s.Start)
			row.Total, row.Max = row.Total+took, max(row.Max, took)
			if i == 0 || took < row.Min {
				row.Min = took
			}
			if i > 0 && s.Detail != row.Detail {
				s.Detail = "several"
			}
			row.Detail = s.Detail
			row.FLOPs, row.Bytes = row.FLOPs+s.FLOPs, row.Bytes+s.Bytes
		}
		if all := busy[k.stream]; all > 0 {
			row.Share = float64(busyOfRanks(spans)) / float64(all)
		}
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b Row) int {
		return cmp.Or(-cmp.Compare(a.Total, b.Total), cmp.Compare(a.Stream, b.Stream), cmp.Compare(a.Name, b.Name))
	})
	return rows
}

// busyOfRanks sums [Busy] over the ranks.
func busyOfRanks(ofStream []Span) (total time.Duration) {
	for _, spans := range byStream(ofStream) {
		total += Busy(spans)
	}
	return total
}

// Top returns the first n rows, or all if there are fewer.
func (t Table) Top(n int) Table { return t[:max(0, min(n, len(t)))] }
