package plan_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/lib/collective/plan"
)

var update = flag.Bool("update", false, "write the golden files anew")

var golden = []struct {
	algorithm plan.Algorithm
	ranks     int
}{{plan.Ring, 4}, {plan.HalvingDoubling, 4}, {plan.HalvingDoubling, 6}, {plan.Tree, 5}, {plan.Hierarchical, 6}}

// TestGolden compares all-reduce plans, and what ranks hold after each round, with
// files that a reader has looked at. go test -update writes them anew.
func TestGolden(t *testing.T) {
	for _, g := range golden {
		p := make1(t, plan.AllReduce, g.algorithm, g.ranks)
		var drawing strings.Builder
		if err := p.Draw(&drawing); err != nil {
			t.Fatal(err)
		}
		got := p.String() + "\n" + drawing.String()
		file := filepath.Join("testdata", fmt.Sprintf("all-reduce-%v-%d.txt", g.algorithm, g.ranks))
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s differs; if the change is meant, run go test -update. Got\n%s", file, got)
		}
	}
}

func TestParseRoundTrip(t *testing.T) {
	every(t, func(t *testing.T, op plan.Op, algorithm plan.Algorithm) {
		for ranks := 1; ranks <= 12; ranks++ {
			p := make1(t, op, algorithm, ranks)
			back, err := plan.Parse(p.String())
			if err != nil {
				t.Fatalf("%d ranks: %v", ranks, err)
			}
			if !reflect.DeepEqual(p, back) {
				t.Fatalf("%d ranks: read back differs:\n%v\nwas\n%v", ranks, back, p)
			}
		}
	})
}

func TestParseErrors(t *testing.T) {
	sound := make1(t, plan.Broadcast, plan.Tree, 2).String()
	if _, err := plan.Parse(sound); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ old, new, want string }{
		{sound, "", "line 1"},
		{"tree", "bush", `"broadcast by bush" is not an operation by an algorithm`},
		{"2 ranks", "two ranks", `line 1: "two ranks, root 0`},
		{"2 ranks", "02 ranks", "line 1"},
		{"root 0", "root -1", "root -1 of 2 ranks"},
		{"1 rounds", "1 rounds, 2", "1 rounds, 2\", want such as"},
		{"1 chunks", "99999999999999999999 chunks", "line 1"},
		{"1 slots", "1000000000000 slots", "slots in all"},
		{"1 chunks", "4611686018427387904 chunks", "want at most"},
		{"2 ranks", "100000 ranks", "want at most"},
		{"rank 1", "rank 2", `line 4: rank "2", want 1`},
		{"rank 0\n", "", `before the line "rank 0"`},
		{"  0: send 0 to 1", "0: send 0 to 1", "line 3"},
		{"send 0 to 1", "send 0 to", `step "send 0 to"`},
		{"send 0 to 1", "send 0[0] to 1", `step "send 0[0] to 1"`},
		{"send 0 to 1", "drop 0", `step "drop 0"`},
		{"send 0 to 1", "send x to 1", `step "send x to 1"`},
		{"send 0 to 1", "send 0 to 7", "peer 7"},
		{"  0: send 0 to 1\n", "  0: send 0 to 1\n  0: send 0 to 1\n", "round 0 after round 0"},
		{"rank 1\n  0: receive 0 from 0\n", "", "steps of 1 ranks, want 2"},
	} {
		text := strings.Replace(sound, test.old, test.new, 1)
		if text == sound {
			t.Fatalf("%q is not in\n%s", test.old, sound)
		}
		if _, err := plan.Parse(text); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: got error %v, want %q", test.new, err, test.want)
		}
	}
}

// FuzzParse: whatever the bytes, there is an error or a plan that prints as it was
// read and can be carried out or refused.
func FuzzParse(f *testing.F) {
	for _, g := range golden {
		p, err := plan.New(plan.AllReduce, g.algorithm, g.ranks)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(p.String())
	}
	f.Add(ownFirst)
	f.Add("gather by naive: 1 ranks, root 0, 1 chunks, 1 slots, 0 rounds\nrank 0\n")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := plan.Parse(text)
		if err != nil {
			return
		}
		if got := p.String(); strings.TrimSuffix(got, "\n") != strings.TrimSuffix(text, "\n") {
			t.Errorf("read\n%s\nprinted\n%s", text, got)
		}
		_ = p.Prove()
		if _, err := p.Count(10, 4); err != nil {
			t.Error(err)
		}
		if _, err := p.Cost(plan.Uniform(nvlink), 10, 4); err != nil {
			t.Error(err)
		}
	})
}
