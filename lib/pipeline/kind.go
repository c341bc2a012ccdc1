package pipeline

import (
	"fmt"
	"strings"

	"github.com/shardbook/shardbook/lib/step"
)

// Kind is the name of a published schedule.
type Kind string

const (
	KindNaive             Kind = "naive"
	KindGPipe             Kind = "gpipe"
	Kind1F1B              Kind = "1f1b"
	KindInterleaved       Kind = "interleaved"
	KindBreadthFirst      Kind = "breadth-first"
	KindLooped            Kind = "looped"
	KindZBH1              Kind = "zb-h1"
	KindZBH2              Kind = "zb-h2"
	KindZBV               Kind = "zb-v"
	KindDualPipe          Kind = "dualpipe"
	KindPipeDream         Kind = "pipedream"
	KindPipeDreamVertical Kind = "pipedream-vertical"
	Kind2BW               Kind = "pipedream-2bw"
)

// Kinds lists the named schedules, the asynchronous ones last.
func Kinds() []Kind {
	return []Kind{KindNaive, KindGPipe, Kind1F1B, KindInterleaved, KindBreadthFirst, KindLooped, KindZBH1, KindZBH2,
		KindZBV, KindDualPipe, KindPipeDream, KindPipeDreamVertical, Kind2BW}
}

// Synchronous reports whether the schedule computes the same as one device: its only update is at the end of the step.
func (k Kind) Synchronous() bool {
	return k != KindPipeDream && k != KindPipeDreamVertical && k != Kind2BW
}

// Chunked reports whether the number of stages per rank can be chosen.
func (k Kind) Chunked() bool {
	return k == KindInterleaved || k == KindBreadthFirst || k == KindLooped
}

// NewSchedule builds a named schedule. Chunks is the number of stages per rank: any for [Kind.Chunked] schedules, where
// 0 means 2; otherwise it must be 0 or 1, even for zb-v, which always has two. PipeDream-2BW updates as often as it
// can: after the smallest number of micro-batches that divides microbatches and is at least ranks. It returns an error
// for an unknown kind and for sizes that the kind cannot have.
func NewSchedule(kind Kind, ranks, microbatches, chunks int) (*step.Plan, error) {
	if chunks == 0 && kind.Chunked() {
		chunks = 2
	}
	switch kind {
	case KindInterleaved:
		return Interleaved(ranks, microbatches, chunks)
	case KindBreadthFirst:
		return BreadthFirst(ranks, microbatches, chunks)
	case KindLooped:
		return Looped(ranks, microbatches, chunks)
	}
	build := map[Kind]func(ranks, microbatches int) (*step.Plan, error){
		KindNaive: Naive, KindGPipe: GPipe, Kind1F1B: OneFOneB, KindZBH1: ZBH1, KindZBH2: ZBH2, KindZBV: ZBV,
		KindDualPipe:          DualPipe,
		KindPipeDream:         func(r, m int) (*step.Plan, error) { return PipeDream(r, m, false) },
		KindPipeDreamVertical: func(r, m int) (*step.Plan, error) { return PipeDream(r, m, true) },
		Kind2BW:               smallest2BW,
	}[kind]
	if build == nil {
		var names []string
		for _, k := range Kinds() {
			names = append(names, string(k))
		}
		return nil, fmt.Errorf("schedule: unknown kind %q: use one of %s", kind, strings.Join(names, ", "))
	}
	if chunks != 0 && chunks != 1 {
		return nil, fmt.Errorf("schedule %s: %d chunks a rank: it takes no number of chunks; "+
			"leave it out, or use %s, %s or %s", kind, chunks, KindInterleaved, KindBreadthFirst, KindLooped)
	}
	return build(ranks, microbatches)
}

// smallest2BW updates as often as [TwoBW] can.
func smallest2BW(ranks, microbatches int) (*step.Plan, error) {
	every := ranks
	for every > 0 && every < min(microbatches, maxPasses) && microbatches%every != 0 {
		every++
	}
	return TwoBW(ranks, microbatches, every)
}
