package schedule

import (
	"strings"
	"testing"
)

// TestVersions holds PipeDream's schedules to the papers' rules, for every pass; with a flush all use version 0.
func TestVersions(t *testing.T) {
	sizes(Kinds(), 6, 18, 2, func(kind Kind, d, m, _ int, s Schedule, have bool) {
		if !have {
			return
		}
		versions, err := s.Versions()
		if err != nil {
			t.Fatal(err)
		}
		for r, list := range s.Ranks {
			for i, a := range list {
				want := 0
				switch { // n stages, from 0: d and r
				case a.Pass == Update:
					want = (a.Microbatch + 1) / s.Every
				case kind == KindPipeDream: // w_k^(t-n+k) with stages from 1, Narayanan et al. 2019, §3.3
					want = max(a.Microbatch-(d-1-r), 0)
				case kind == KindPipeDreamVertical: // w^(t-n+1)
					want = max(a.Microbatch-(d-1), 0)
				case kind == Kind2BW: // W(t-1), Narayanan et al. 2021, PipeDream-2BW, §3.1
					want = max(a.Microbatch/s.Every-1, 0)
				}
				if versions[r][i] != want {
					t.Fatalf("%s, %d ranks, %d micro-batches: rank %d, %v uses version %d, want %d", kind, d, m, r, a, versions[r][i], want)
				}
			}
		}
	})
}

// TestKeptVersions: as many versions as the papers say.
func TestKeptVersions(t *testing.T) {
	sizes(Kinds(), 6, 18, 2, func(kind Kind, d, m, _ int, s Schedule, have bool) {
		if !have {
			return
		}
		kept, err := s.KeptVersions()
		if err != nil {
			t.Fatal(err)
		}
		for r := range d {
			if got, want := len(kept[r]), len(s.On(r)); got != want {
				t.Fatalf("%s: rank %d has versions of %d stages, want %d", kind, r, got, want)
			}
			for stage, got := range kept[r] {
				// In the steady state n versions; of few micro-batches all use versions 0 to m-n, and there is the newest.
				steady := func(n int) int { return min(n, max(min(2, m), m-n+2)) }
				want := 1
				switch kind {
				case KindPipeDream: // one for each micro-batch under way, Narayanan et al. 2019, §3.3
					want = steady(d - r)
				case KindPipeDreamVertical: // each rank waits for the first's
					want = steady(d)
				case Kind2BW: // Narayanan et al. 2021, PipeDream-2BW, §3.1
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

func TestVersionsErrors(t *testing.T) {
	// Rank 1 has not made the version that rank 0 used for micro-batch 1.
	s, err := Parse("schedule x stages=2 microbatches=2 every=1 weights=vertical\n" +
		"rank 0: 0F0 0B0 0U0 0F1 0B1 0U1\nrank 1: 1F0 1B0 1F1 1U0 1B1 1U1")
	if err != nil {
		t.Fatal(err)
	}
	const want = "rank 1, position 2, 1F1: it needs version 1 of the weights, and the rank has made only 0"
	for _, err := range []error{s.Check(), second(s.Versions()), second(s.KeptVersions())} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func second[T any](_ T, err error) error { return err }
