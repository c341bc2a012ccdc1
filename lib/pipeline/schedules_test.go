package pipeline_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/step"
)

func TestNew(t *testing.T) {
	for _, kind := range pipeline.Kinds() {
		s, err := pipeline.NewSchedule(kind, 4, 8, 0)
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		if s.Name != string(kind) || len(s.Ranks) != 4 || s.Micro != 8 ||
			(s.Weights == step.Flush) != kind.Synchronous() {
			t.Errorf("%s: %s of %d ranks, %d micro-batches, weights %s", kind, s.Name, len(s.Ranks), s.Micro, s.Weights)
		}
		for r := range s.Ranks {
			want := 1
			if kind.Chunked() || kind == pipeline.KindZBV || kind == pipeline.KindDualPipe {
				want = 2
			}
			if got := s.On(r); len(got) != want {
				t.Errorf("%s: rank %d has stages %v, want %d", kind, r, got, want)
			}
		}
		same, err := pipeline.NewSchedule(kind, 4, 8, 0)
		if err != nil || !reflect.DeepEqual(s, same) {
			t.Errorf("%s: not the same twice (%v)", kind, err)
		}
	}
}

// TestOneChunk: with one chunk a rank the chunked kinds are those without.
func TestOneChunk(t *testing.T) {
	for chunked, plain := range map[pipeline.Kind]pipeline.Kind{pipeline.KindInterleaved: pipeline.Kind1F1B,
		pipeline.KindBreadthFirst: pipeline.KindGPipe, pipeline.KindLooped: pipeline.KindGPipe} {
		sizes([]pipeline.Kind{chunked}, 5, 7, 1, func(kind pipeline.Kind, d, m, _ int, s *step.Plan, have bool) {
			want := must.Get(pipeline.NewSchedule(plain, d, m, 0))(t)
			if want.Name = string(kind); !have || !reflect.DeepEqual(s, want) {
				t.Errorf("%s, %d ranks, %d micro-batches: %v, want\n%v", kind, d, m, s, want)
			}
		})
	}
}

func TestNewErrors(t *testing.T) {
	for _, kind := range pipeline.Kinds() {
		for _, c := range []struct {
			ranks, microbatches, chunks int
			want                        string
		}{
			{0, 8, 0, "0 ranks: ask for at least 1"},
			{-1, 8, 0, "-1 ranks"},
			{4, 0, 0, "0 micro-batches: ask for at least 1"},
			{1 << 40, 8, 0, "ask for at most"},
			{1 << 12, 1 << 13, 0, "ask for fewer"},
			{4, 8, -1, "-1 chunks a rank"},
		} {
			if _, err := pipeline.NewSchedule(kind, c.ranks, c.microbatches, c.chunks); err == nil ||
				!strings.Contains(err.Error(), c.want) {
				t.Errorf("%s, %d ranks, %d micro-batches, %d chunks: %v, want %q", kind, c.ranks, c.microbatches,
					c.chunks, err, c.want)
			}
		}
		_, err := pipeline.NewSchedule(kind, 4, 8, 3)
		if (err == nil) != kind.Chunked() {
			t.Errorf("%s with 3 chunks: %v", kind, err)
		}
	}
	for _, c := range []struct {
		err  error
		want string
	}{
		{second(pipeline.NewSchedule("gpipes", 4, 8, 0)), `unknown kind "gpipes": use one of naive, gpipe, 1f1b, `},
		{second(pipeline.NewSchedule(pipeline.KindGPipe, 4, 8, 2)), "it takes no number of chunks; leave it out"},
		{second(pipeline.Interleaved(4, 6, 2)), "6 micro-batches are not a multiple of 4 ranks: use 4 or 8"},
		{second(pipeline.Interleaved(4, 3, 2)), "3 micro-batches are not a multiple of 4 ranks: use 4"},
		{second(pipeline.DualPipe(3, 8)), "3 ranks are odd: use 4"},
		{second(pipeline.DualPipe(4, 9)), "9 micro-batches: use an even number of at least 8"},
		{second(pipeline.DualPipe(4, 6)), "6 micro-batches: use an even number of at least 8"},
		{second(pipeline.TwoBW(0, 8, 2)), "0 ranks: ask for at least 1"},
		{second(pipeline.TwoBW(4, 8, 2)), "every 2 micro-batches is too often for 4 ranks"},
		{second(pipeline.TwoBW(4, 9, 3)), "every 3 micro-batches is too often for 4 ranks"},
		{second(pipeline.TwoBW(4, 10, 4)), "10 micro-batches are not a multiple of the 4 of an update: use 12"},
		{second(pipeline.NewSchedule(pipeline.Kind2BW, 4, 3, 0)),
			"3 micro-batches are not a multiple of the 4 of an update: use 4"},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%v, want %q", c.err, c.want)
		}
	}
}

// TestFigures compares with the orders of the papers' figures, which have 4 ranks and 8 micro-batches, here from 0. A
// letter is a pass; the chunk is that of the rank.
func TestFigures(t *testing.T) {
	for _, c := range []struct {
		kind pipeline.Kind
		rank int
		want string
	}{
		// Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters", figure 4, top.
		{pipeline.Kind1F1B, 0, "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7"},
		{pipeline.Kind1F1B, 3, "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7"},
		// The same figure, bottom; ' is the second chunk.
		{pipeline.KindInterleaved, 0, "F0 F1 F2 F3 F'0 F'1 F'2 F'3 F4 F5 F6 B'0 F7 B'1 F'4 B'2 F'5 B'3 F'6 B0 F'7 B1 " +
			"B2 B3 B'4 B'5 B'6 B'7 B4 B5 B6 B7"},
		{pipeline.KindInterleaved, 3, "F0 F1 F2 F3 F'0 B'0 F'1 B'1 F'2 B'2 F'3 B'3 F4 B0 F5 B1 F6 B2 F7 B3 F'4 B'4 " +
			"F'5 B'5 F'6 B'6 F'7 B'7 B4 B5 B6 B7"},
		// Qi et al. 2023, figure 3, top ...
		{pipeline.KindZBH1, 0, "F0 F1 F2 F3 I0 W0 F4 I1 W1 F5 I2 W2 F6 I3 W3 F7 I4 W4 I5 W5 I6 W6 I7 W7"},
		{pipeline.KindZBH1, 3, "F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 F6 I6 W3 F7 I7 W4 W5 W6 W7"},
		// ... and bottom.
		{pipeline.KindZBH2, 0, "F0 F1 F2 F3 F4 F5 F6 I0 W0 F7 I1 W1 I2 W2 I3 W3 I4 W4 I5 W5 I6 W6 I7 W7"},
		{pipeline.KindZBH2, 3, "F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 F5 I5 F6 I6 W0 F7 I7 W1 W2 W3 W4 W5 W6 W7"},
	} {
		s := must.Get(pipeline.NewSchedule(c.kind, 4, 8, 0))(t)
		var got []string
		for _, a := range s.Ranks[c.rank] {
			if a.Kind != step.Update {
				got = append(got, fmt.Sprintf("%c%s%d", a.Kind, strings.Repeat("'", a.Block/4), a.Micro))
			}
		}
		if line := strings.Join(got, " "); line != c.want {
			t.Errorf("%s, rank %d:\n%s, want\n%s", c.kind, c.rank, line, c.want)
		}
	}
}

// sizes calls do with every schedule that the kinds have up to these sizes, and for the kinds that have none with a
// blank one and have false.
func sizes(kinds []pipeline.Kind, ranks, microbatches, chunks int,
	do func(kind pipeline.Kind, d, m, v int, s *step.Plan, have bool)) {
	for _, kind := range kinds {
		for v := 1; v <= chunks && (v == 1 || kind.Chunked()); v++ {
			for d := 1; d <= ranks; d++ {
				for m := 1; m <= microbatches; m++ {
					s, err := pipeline.NewSchedule(kind, d, m, v)
					if err != nil {
						s = &step.Plan{}
					}
					do(kind, d, m, v, s, err == nil)
				}
			}
		}
	}
}

func TestBubbleOfNothing(t *testing.T) {
	for _, c := range [][3]int{{0, 8, 0}, {4, 0, 0}, {4, 8, -1}, {4, 8, 2}, {1 << 40, 8, 0}} {
		if _, _, ok := pipeline.Bubble(pipeline.KindGPipe, c[0], c[1], c[2]); ok {
			t.Errorf("%v has a bubble", c)
		}
	}
}

// TestBubbleOfPairs finds the bubble that DeepSeek-AI 2024, table 2, publishes for pipeline.DualPipe, (d/2-1)(F&B + B
// - 3W), where a forward and a backward pass at once take F&B = F + B and end together.
func TestBubbleOfPairs(t *testing.T) {
	sizes([]pipeline.Kind{pipeline.KindDualPipe}, 12, 48, 1,
		func(_ pipeline.Kind, d, m, _ int, s *step.Plan, have bool) {
			if !have {
				return
			}
			const both, back, weight = 3, 2, 1
			period, busy := dumbPeriod(s)
			if want := (d/2 - 1) * (both + back - 3*weight); period-busy != want {
				t.Errorf("%d ranks, %d micro-batches: idle %d, published %d", d, m, period-busy, want)
			}
		})
}

// TestStash compares the memory of schedules with the papers.
func TestStash(t *testing.T) {
	kinds := []pipeline.Kind{pipeline.KindGPipe, pipeline.Kind1F1B, pipeline.KindZBH1, pipeline.KindZBH2,
		pipeline.KindZBV, pipeline.KindDualPipe, pipeline.KindPipeDream}
	sizes(kinds, 12, 48, 1, func(kind pipeline.Kind, d, m, _ int, s *step.Plan, have bool) {
		if !have {
			return
		}
		peaks := s.PeakActivations()
		for r := range d {
			peak := peaks[r]
			var want int
			exact := true
			switch kind {
			case pipeline.KindGPipe:
				want = m
			case pipeline.Kind1F1B, pipeline.KindPipeDream:
				want = min(d-r, m) // Narayanan et al. 2021, §2.2.1
			case pipeline.KindZBH1:
				want = min(d, m) // Qi et al. 2023, §2.1
			case pipeline.KindZBH2:
				want = min(2*d-1, m) // §2.2
			case pipeline.KindZBV:
				want, exact = 2*min(d, m), m >= 2*d-1 // §6
			case pipeline.KindDualPipe:
				want = d + 1 // DeepSeek-AI 2024, table 2
			}
			if peak > want || (exact && peak != want) {
				t.Errorf("%s, %d ranks, %d micro-batches: rank %d stashes %d, want %d", kind, d, m, r, peak, want)
			}
		}
	})
}

func ExampleBubble() {
	for _, kind := range []pipeline.Kind{pipeline.Kind1F1B, pipeline.KindInterleaved, pipeline.KindZBH1,
		pipeline.KindZBH2} {
		idle, total, _ := pipeline.Bubble(kind, 4, 8, 0)
		fmt.Printf("%-12s %d/%d\n", kind, idle, total)
	}
	// Output:
	// 1f1b         3/11
	// interleaved  3/19
	// zb-h1        3/27
	// zb-h2        0/24
}

// TestVersions compares the versions of PipeDream's schedules with the papers, for every pass; with a flush all use
// version 0.
func TestVersions(t *testing.T) {
	sizes(pipeline.Kinds(), 6, 18, 2, func(kind pipeline.Kind, d, m, _ int, s *step.Plan, have bool) {
		if !have {
			return
		}
		versions := must.Get(s.Versions())(t)
		for r, list := range s.Ranks {
			for i, a := range list {
				want := 0
				switch { // n stages, from 0: d and r
				case a.Kind == step.Update:
					want = (a.Micro + 1) / s.Every
				case kind == pipeline.KindPipeDream: // w_k^(t-n+k) with stages from 1, Narayanan et al. 2019, §3.3
					want = max(a.Micro-(d-1-r), 0)
				case kind == pipeline.KindPipeDreamVertical: // w^(t-n+1)
					want = max(a.Micro-(d-1), 0)
				case kind == pipeline.Kind2BW: // W(t-1), Narayanan et al. 2021, PipeDream-2BW, §3.1
					want = max(a.Micro/s.Every-1, 0)
				}
				if versions[r][i] != want {
					t.Fatalf("%s, %d ranks, %d micro-batches: rank %d, %v uses version %d, want %d", kind, d, m, r, a,
						versions[r][i], want)
				}
			}
		}
	})
}

// TestKeptVersions compares the number of stored versions with the papers.
func TestKeptVersions(t *testing.T) {
	sizes(pipeline.Kinds(), 6, 18, 2, func(kind pipeline.Kind, d, m, _ int, s *step.Plan, have bool) {
		if !have {
			return
		}
		kept := must.Get(s.WeightVersions())(t)
		for r := range d {
			if got, want := len(kept[r]), len(s.On(r)); got != want {
				t.Fatalf("%s: rank %d has versions of %d stages, want %d", kind, r, got, want)
			}
			for stage, got := range kept[r] {
				// In the steady state n versions; of few micro-batches all use versions 0 to m-n, and there is the
				// newest.
				steady := func(n int) int { return min(n, max(min(2, m), m-n+2)) }
				want := 1
				switch kind {
				case pipeline.KindPipeDream: // one for each micro-batch under way, Narayanan et al. 2019, §3.3
					want = steady(d - r)
				case pipeline.KindPipeDreamVertical: // each rank waits for the first's
					want = steady(d)
				case pipeline.Kind2BW: // Narayanan et al. 2021, PipeDream-2BW, §3.1
					want = min(2, m/s.Every)
				}
				if got != want {
					t.Errorf("%s, %d ranks, %d micro-batches every %d: rank %d keeps %d versions of stage %d, want %d",
						kind, d, m, s.Every, r, got, stage, want)
				}
			}
		}
	})
}
