package schedule

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func TestNew(t *testing.T) {
	for _, kind := range Kinds() {
		s, err := New(kind, 4, 8, 0)
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		if s.Name != string(kind) || len(s.Ranks) != 4 || s.Microbatches != 8 || (s.Weights == Flush) != kind.Synchronous() {
			t.Errorf("%s: %s of %d ranks, %d micro-batches, weights %s", kind, s.Name, len(s.Ranks), s.Microbatches, s.Weights)
		}
		for r := range s.Ranks {
			want := 1
			if kind.Chunked() || kind == KindZBV || kind == KindDualPipe {
				want = 2
			}
			if got := s.On(r); len(got) != want {
				t.Errorf("%s: rank %d has stages %v, want %d", kind, r, got, want)
			}
		}
		same, err := New(kind, 4, 8, 0)
		if err != nil || !reflect.DeepEqual(s, same) {
			t.Errorf("%s: not the same twice (%v)", kind, err)
		}
	}
}

// TestOneChunk: with one chunk a rank the chunked kinds are those without.
func TestOneChunk(t *testing.T) {
	for chunked, plain := range map[Kind]Kind{KindInterleaved: Kind1F1B, KindBreadthFirst: KindGPipe, KindLooped: KindGPipe} {
		sizes([]Kind{chunked}, 5, 7, 1, func(kind Kind, d, m, _ int, s Schedule, have bool) {
			want, err := New(plain, d, m, 0)
			if err != nil {
				t.Fatal(err)
			}
			if want.Name = string(kind); !have || !reflect.DeepEqual(s, want) {
				t.Errorf("%s, %d ranks, %d micro-batches: %v, want\n%v", kind, d, m, s, want)
			}
		})
	}
}

func TestNewErrors(t *testing.T) {
	for _, kind := range Kinds() {
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
			if _, err := New(kind, c.ranks, c.microbatches, c.chunks); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s, %d ranks, %d micro-batches, %d chunks: %v, want %q", kind, c.ranks, c.microbatches, c.chunks, err, c.want)
			}
		}
		_, err := New(kind, 4, 8, 3)
		if (err == nil) != kind.Chunked() {
			t.Errorf("%s with 3 chunks: %v", kind, err)
		}
	}
	for _, c := range []struct {
		err  error
		want string
	}{
		{second(New("gpipes", 4, 8, 0)), `unknown kind "gpipes": use one of naive, gpipe, 1f1b, `},
		{second(New(KindGPipe, 4, 8, 2)), "it takes no number of chunks; leave it out"},
		{second(Interleaved(4, 6, 2)), "6 micro-batches are no multiple of 4 ranks: use 4 or 8"},
		{second(Interleaved(4, 3, 2)), "3 micro-batches are no multiple of 4 ranks: use 4"},
		{second(DualPipe(3, 8)), "3 ranks are odd: use 4"},
		{second(DualPipe(4, 9)), "9 micro-batches: use an even number of at least 8"},
		{second(DualPipe(4, 6)), "6 micro-batches: use an even number of at least 8"},
		{second(TwoBW(0, 8, 2)), "0 ranks: ask for at least 1"},
		{second(TwoBW(4, 8, 2)), "every 2 micro-batches is too often for 4 ranks"},
		{second(TwoBW(4, 9, 3)), "every 3 micro-batches is too often for 4 ranks"},
		{second(TwoBW(4, 10, 4)), "10 micro-batches are no multiple of the 4 that an update takes: use 12"},
		{second(New(Kind2BW, 4, 3, 0)), "3 micro-batches for 4 ranks"},
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
		kind Kind
		rank int
		want string
	}{
		// Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters", figure 4, top.
		{Kind1F1B, 0, "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7"},
		{Kind1F1B, 3, "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7"},
		// The same figure, bottom; ' is the second chunk.
		{KindInterleaved, 0, "F0 F1 F2 F3 F'0 F'1 F'2 F'3 F4 F5 F6 B'0 F7 B'1 F'4 B'2 F'5 B'3 F'6 B0 F'7 B1 B2 B3 B'4 B'5 B'6 B'7 B4 B5 B6 B7"},
		{KindInterleaved, 3, "F0 F1 F2 F3 F'0 B'0 F'1 B'1 F'2 B'2 F'3 B'3 F4 B0 F5 B1 F6 B2 F7 B3 F'4 B'4 F'5 B'5 F'6 B'6 F'7 B'7 B4 B5 B6 B7"},
		// Qi et al. 2023, figure 3, top ...
		{KindZBH1, 0, "F0 F1 F2 F3 I0 W0 F4 I1 W1 F5 I2 W2 F6 I3 W3 F7 I4 W4 I5 W5 I6 W6 I7 W7"},
		{KindZBH1, 3, "F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 F6 I6 W3 F7 I7 W4 W5 W6 W7"},
		// ... and bottom.
		{KindZBH2, 0, "F0 F1 F2 F3 F4 F5 F6 I0 W0 F7 I1 W1 I2 W2 I3 W3 I4 W4 I5 W5 I6 W6 I7 W7"},
		{KindZBH2, 3, "F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 F5 I5 F6 I6 W0 F7 I7 W1 W2 W3 W4 W5 W6 W7"},
	} {
		s, err := New(c.kind, 4, 8, 0)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, a := range s.Ranks[c.rank] {
			if a.Pass != Update {
				got = append(got, fmt.Sprintf("%c%s%d", a.Pass, strings.Repeat("'", a.Stage/4), a.Microbatch))
			}
		}
		if line := strings.Join(got, " "); line != c.want {
			t.Errorf("%s, rank %d:\n%s, want\n%s", c.kind, c.rank, line, c.want)
		}
	}
}
