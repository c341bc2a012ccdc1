package schedule

import (
	"fmt"
	"testing"
)

// sizes calls do with every schedule that the kinds have up to these sizes, and for the kinds that have none with a blank
// one and have false.
func sizes(kinds []Kind, ranks, microbatches, chunks int, do func(kind Kind, d, m, v int, s Schedule, have bool)) {
	for _, kind := range kinds {
		for v := 1; v <= chunks && (v == 1 || kind.Chunked()); v++ {
			for d := 1; d <= ranks; d++ {
				for m := 1; m <= microbatches; m++ {
					s, err := New(kind, d, m, v)
					do(kind, d, m, v, s, err == nil)
				}
			}
		}
	}
}

// TestBubble compares the formulas with the times of a simulation, exactly.
func TestBubble(t *testing.T) {
	compare := func(kind Kind, d, m, v int, s Schedule, have bool) {
		idle, total, ok := Bubble(kind, d, m, v)
		if want := have && kind.Synchronous(); ok != want {
			t.Fatalf("%s, %d ranks, %d micro-batches, %d chunks: a formula is there: %v, want %v", kind, d, m, v, ok, want)
		}
		if !ok {
			return
		}
		period, busy := dumbPeriod(s, false)
		if work := 3 * m * s.Stages / d; period == 0 || busy != work || idle*period != (period-busy)*total {
			t.Errorf("%s, %d ranks, %d micro-batches, %d chunks: idle %d of %d, the formula says %d of %d",
				kind, d, m, v, period-busy, period, idle, total)
		}
	}
	sizes(Kinds(), 12, 48, 1, compare)
	sizes([]Kind{KindInterleaved}, 12, 48, 4, compare)
	sizes([]Kind{KindBreadthFirst, KindLooped}, 12, 20, 3, compare)
}

func TestBubbleOfNothing(t *testing.T) {
	for _, c := range [][3]int{{0, 8, 0}, {4, 0, 0}, {4, 8, -1}, {4, 8, 2}, {1 << 40, 8, 0}} {
		if _, _, ok := Bubble(KindGPipe, c[0], c[1], c[2]); ok {
			t.Errorf("%v has a bubble", c)
		}
	}
}

// TestBubbleOfPairs finds the bubble that DeepSeek-AI 2024, table 2, publishes for DualPipe, (d/2-1)(F&B + B - 3W), where a
// forward and a backward pass at once take F&B = F + B and end together.
func TestBubbleOfPairs(t *testing.T) {
	sizes([]Kind{KindDualPipe}, 12, 48, 1, func(_ Kind, d, m, _ int, s Schedule, have bool) {
		if !have {
			return
		}
		const both, back, weight = 3, 2, 1
		period, busy := dumbPeriod(s, true)
		if want := (d/2 - 1) * (both + back - 3*weight); period-busy != want {
			t.Errorf("%d ranks, %d micro-batches: idle %d, published %d", d, m, period-busy, want)
		}
	})
}

// TestStash holds the schedules to the memory that their papers give.
func TestStash(t *testing.T) {
	kinds := []Kind{KindGPipe, Kind1F1B, KindZBH1, KindZBH2, KindZBV, KindDualPipe, KindPipeDream}
	sizes(kinds, 12, 48, 1, func(kind Kind, d, m, _ int, s Schedule, have bool) {
		if !have {
			return
		}
		peaks := s.PeakActivations()
		for r := range d {
			peak := dumbStash(s, r)
			if peaks[r] != peak {
				t.Fatalf("%s, %d ranks, %d micro-batches: PeakActivations of rank %d is %d, want %d", kind, d, m, r, peaks[r], peak)
			}
			var want int
			exact := true
			switch kind {
			case KindGPipe:
				want = m
			case Kind1F1B, KindPipeDream:
				want = min(d-r, m) // Narayanan et al. 2021, §2.2.1
			case KindZBH1:
				want = min(d, m) // Qi et al. 2023, §2.1
			case KindZBH2:
				want = min(2*d-1, m) // §2.2
			case KindZBV:
				want, exact = 2*min(d, m), m >= 2*d-1 // §6
			case KindDualPipe:
				want = d + 1 // DeepSeek-AI 2024, table 2
			}
			if peak > want || (exact && peak != want) {
				t.Errorf("%s, %d ranks, %d micro-batches: rank %d stashes %d, want %d", kind, d, m, r, peak, want)
			}
		}
	})
}

// TestGradientOrder: every schedule adds up a stage's gradients in the order of the micro-batches.
func TestGradientOrder(t *testing.T) {
	sizes(Kinds(), 8, 16, 3, func(kind Kind, d, m, v int, s Schedule, have bool) {
		for r, list := range s.Ranks {
			last := map[int]int{}
			for _, a := range list {
				if a.Pass != Backward && a.Pass != WeightGrad {
					continue
				}
				if before, ok := last[a.Stage]; ok && a.Microbatch <= before {
					t.Fatalf("%s, %d ranks, %d micro-batches, %d chunks: rank %d has %v after micro-batch %d", kind, d, m, v, r, a, before)
				}
				last[a.Stage] = a.Microbatch
			}
		}
	})
}

func ExampleBubble() {
	for _, kind := range []Kind{Kind1F1B, KindInterleaved, KindZBH1, KindZBH2} {
		idle, total, _ := Bubble(kind, 4, 8, 0)
		fmt.Printf("%-12s %d/%d\n", kind, idle, total)
	}
	// Output:
	// 1f1b         3/11
	// interleaved  3/19
	// zb-h1        3/27
	// zb-h2        0/24
}
