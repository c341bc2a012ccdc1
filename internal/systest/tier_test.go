package systest

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/shardbook/shardbook/internal/cache"
	"github.com/shardbook/shardbook/internal/must"
)

// Whatever two values meet in some case meet in one that is taken, and a case that has nothing new is not.
func TestPairwise(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(1, seed))
		cases := make([][]any, random.IntN(60))
		for i := range cases {
			cases[i] = []any{random.IntN(4), random.IntN(3), random.IntN(2) == 0, random.IntN(5)}
		}
		some := pairwise(cases, func(c []any) []any { return c })
		for _, c := range cases {
			for j := range c {
				for i := range j {
					if !slices.ContainsFunc(some, func(s []any) bool { return s[i] == c[i] && s[j] == c[j] }) {
						t.Fatalf("seed %d: no case that is taken has %v at %d and %v at %d", seed, c[i], i, c[j], j)
					}
				}
			}
		}
		if len(some) > 20+4 { // 4 × 5 is the least that two factors need
			t.Errorf("seed %d: %d of %d cases are taken", seed, len(some), len(cases))
		}
	}
}

// CI runs everything and others the quick tier, unless they are told otherwise.
func TestFull(t *testing.T) {
	for _, test := range []struct {
		ci, tier string
		want     bool
	}{{"", "", false}, {"true", "", true}, {"true", "quick", false}, {"", "full", true}} {
		t.Setenv("CI", test.ci)
		t.Setenv(EnvTier, test.tier)
		if got := Full(); got != test.want {
			t.Errorf("CI=%q %s=%q: full %v", test.ci, EnvTier, test.tier, got)
		}
	}
}

// recorder is a test that is skipped or fails without ending this one.
type recorder struct {
	testing.TB
	skipped, failed bool
}

func (r *recorder) Skipf(string, ...any)  { r.skipped = true }
func (r *recorder) Fatalf(string, ...any) { r.failed = true }

// In CI what is skipped is allowed by its line, or fails; what the quick tier leaves out needs no line.
func TestSkip(t *testing.T) {
	defer func(text string) { allowed = text }(allowed)
	t.Setenv(EnvTier, "")
	t.Setenv(cache.EnvDir, t.TempDir()) // for the notes
	for _, test := range []struct {
		ci, allowed string
		why         Reason
		fails       bool
	}{
		{"", "", NoGPU, false},
		{"true", "", NoGPU, true},
		{"true", "no GPU: internal/systest TestSkip", NoGPU, false},
		{"true", "no GPU: internal/systest TestSki\nno peers: internal/systest TestSkip", NoGPU, true},
		{"true", "", Tier, false},
	} {
		t.Setenv("CI", test.ci)
		allowed = test.allowed
		if r := (&recorder{TB: t}); true {
			Skip(r, test.why, "a reason")
			if r.failed != test.fails {
				t.Errorf("%+v: failed %v, skipped %v", test, r.failed, r.skipped)
			}
		}
	}
}

// What is noted is found where the table looks for it, by the package that it was noted in.
func TestNotes(t *testing.T) {
	t.Setenv(cache.EnvDir, t.TempDir())
	t.Setenv(EnvTier, "full")
	if got := OfFull(t, 2, []int{1, 2}); len(got) != 2 {
		t.Errorf("%v", got)
	}
	t.Setenv(EnvTier, "quick")
	if got := OfFull(t, 1, []int{1, 2}); len(got) != 1 {
		t.Errorf("%v", got)
	}
	folder, err := Records()
	must.Do(t, err)
	text, err := os.ReadFile(filepath.Join(folder, "internal%systest.jsonl"))
	want := `{"Package":"internal/systest","Test":"TestNotes","Why":"tier","What":"1 of 2 cases"}` + "\n"
	if err != nil || string(text) != want {
		t.Errorf("%v, %q, want %q", err, text, want)
	}
}

// A run of some tests only says nothing of the others.
func TestPartial(t *testing.T) {
	for _, test := range []struct {
		args []string
		want bool
	}{
		{[]string{"-test.timeout=10m0s", "-test.v=true", "-test.run="}, false},
		{[]string{"-test.timeout=10m0s", "-test.run=^TestA$"}, true},
		{[]string{"-test.bench=."}, true},
	} {
		if got := partial(test.args); got != test.want {
			t.Errorf("%q: %v", test.args, got)
		}
	}
}
