package step

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"github.com/shardbook/shardbook/internal/must"
)

// TestRoundTrip writes and reads random plans, sound and not, under awkward names.
func TestRoundTrip(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	names := []string{"", "1f1b", "two words", "a\nb", `"quoted"`, "a=b", "#", "ü", "schedule x", "stages=3"}
	for i := range 600 {
		p := randomPlan(random)
		p.Name = names[i%len(names)]
		if pairUp(random, p); i%3 == 0 {
			mutate(random, p)
		}
		if i%4 == 0 {
			p.Blocks[0].Name, p.Units[0].Name = names[i%len(names)], names[i/2%len(names)]
			p.Blocks[len(p.Blocks)-1].Units = []int{0}
		}
		if i%5 == 0 {
			p.Axes = append(p.Axes, Axis{Name: "own", Size: 3})
			p.Units = append(p.Units, Unit{Name: "tied", Reduce: []string{"own"}})
		}
		if i%7 == 0 {
			p.Ranks[len(p.Ranks)-1] = nil
		}
		for r, list := range p.Ranks {
			if len(list) == 0 {
				p.Ranks[r] = nil
			}
		}
		both(t, p)
	}
}

// both writes and reads a plan in both forms.
func both(t *testing.T, p *Plan) {
	t.Helper()
	if got, err := Parse(p.String()); err != nil || !reflect.DeepEqual(got, p) {
		t.Fatalf("as text:\n%vcomes back as\n%v(%v)", p, got, err)
	}
	if len(p.Ranks) == 0 {
		return // CSV has no form for that
	}
	var b bytes.Buffer
	must.Do(t, p.WriteCSV(&b))
	written := b.String()
	if got, err := ReadCSV(&b); err != nil || !reflect.DeepEqual(got, p) {
		t.Fatalf("as CSV:\n%s\ncomes back as\n%v(%v)", written, got, err)
	}
}

const small = "schedule mine stages=2\nrank 0: 0F0 0F1 0B0 0B1 0U1\nrank 1: 1F0 1B0 1F1 1B1 1U1"

func TestParse(t *testing.T) {
	p, err := Parse("# by hand\n\nschedule mine\n  rank  0 : 0F0  0F1 0B0 0B1 0U1\nrank 1: 1F0 1B0 1F1 1B1 1U1\n")
	if want := parsed(t, small); err != nil || !reflect.DeepEqual(p, want) {
		t.Errorf("%v(%v), want\n%v", p, err, want)
	}
	for _, c := range []struct{ text, want string }{
		{"", "the text is empty"},
		{"# only this", "the text is empty"},
		{"rank 0: 0F0", `line 1: "rank 0: 0F0": want "schedule NAME`},
		{"\nschedule a b", `line 2: "b": want any of blocks=…, every=…, microbatches=…, stages=…, units=…, weights=…`},
		{"schedule a stages=0", "stages: \"0\": want a number from 1 to"},
		{"schedule a stages=-1", "want a number from 1"},
		{"schedule a microbatches=99999999999999999999", "want a number from 1 to"},
		{"schedule a every=x", "want a number from 1 to"},
		{"schedule a weights=old", "want one of [flush stash vertical double]"},
		{"schedule a=b stages=1", `name "a=b": quote`},
		{"schedule a\nrank 1: 0F0", `line 2: "rank 1: 0F0": want the list of the next rank, "rank 0: 0F0`},
		{"schedule a\nrank 0 0F0", "want the list of the next rank"},
		{"schedule a\nrank 0: 0F0 0X0", `line 2: position 1: "0X0": want block, pass`},
		{"schedule a\nrank 0: 0F", "as in 2F0"},
		{"schedule a\nrank 0: F0", "as in 2F0"},
		{"schedule a\nrank 0: 0F0F0", "as in 2F0"},
		{"schedule a\nrank 0: +1F0", "as in 2F0"},
		{"schedule a\nrank 0: 9999999F0", "want numbers up to"},
		{"schedule a\nrank 0: SEND_F0", "as in 2F0"},
		{"schedule a\nrank 0: UNSHARD", "as in 2F0"},
		{"schedule a\nrank 0: 0UNSHARD@a,b", "as in 2F0"},
		{"schedule a\nrank 0: 0SEND_F0>x", "want a number from 0"},
		{"plan a blocks=1\naxis \"a b\" size=2", "name it with letters"},
		{"plan a blocks=1\naxis a size=x", "want a number from 0"},
		{"plan a blocks=1\naxis a groups=3-1", "want numbers as in 0-3,6"},
		{"plan a blocks=1\naxis a colour=red", "want any of groups=…, size=…"},
		{"plan a blocks=1\nunit 1 shard=a", "unit 1: there are 1"},
		{"plan a blocks=1\nunit 0 size=a", "quote a name"},
		{"plan a blocks=1\nunit 0 reduce=a,", "want names of axes"},
		{"plan a blocks=1\nblock 1 units=0", "block 1: there are 1"},
		{"plan a blocks=1\nblock 0 unit=0", "quote a name"},
		{"plan a blocks=1\nlayer 0", "want a line for an axis"},
		{"plan a blocks=1\nranks 0,2: 0F0", "rank 1 has no list"},
		{"plan a blocks=1\nranks 0,0: 0F0", "rank 0 has a list already"},
		{"plan a blocks=1\nranks 0-1000000: 0F0", "more than"},
	} {
		if _, err := Parse(c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.text, err, c.want)
		}
	}
	if _, err := Parse("schedule a\nrank 0:" + strings.Repeat(" 0F0", maxOps+1)); err == nil ||
		!strings.Contains(err.Error(), "more than") {
		t.Errorf("too many operations: %v", err)
	}
}

func TestReadCSV(t *testing.T) {
	want := parsed(t, small)
	want.Name = ""
	for _, text := range []string{
		"0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1,\n",           // as PyTorch dumps it
		"0F0,0F1,,0B0,,0B1\r\n,1F0,1B0,1F1,1B1\r\n\r\n",    // as Python's csv ends lines
		" 0F0, 0F1,\"0B0\",0B1\n# a note\n1F0,1B0,1F1,1B1", // by hand
		// other comments are skipped, before the plan's first line and after it
		"# of a run\n#schedule stages=2\n# a note\n0F0,0F1,0B0,0B1,0U1\n# another\n1F0,1B0,1F1,1B1,1U1",
	} {
		if got, err := ReadCSV(strings.NewReader(text)); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q is\n%v(%v), want\n%v", text, got, err, want)
		}
	}
	for _, c := range []struct{ text, want string }{
		{"", "no records"},
		{"# schedule a stages=2\n", "no records"},
		{"# schedule a stages=x\n0F0", "line 1"},
		{"(0F0;what)OVERLAP_F_B", `line 1: position 1: "&what": want block, pass`},
		{"0F0\n1F0,what", `line 2: position 1: "what": want block, pass`},
		{strings.Repeat("0F0,", maxOps+1), "more than"},
		{strings.Repeat("\"\"\n", maxOps+1), "more than"},
		{strings.Repeat(",", maxCSV+1), "longer than"},
	} {
		if _, err := ReadCSV(strings.NewReader(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.40q: %v, want %q", c.text, err, c.want)
		}
	}
}

// TestReadLoweredCSV reads what PyTorch lowers, with parameters that are gathered, and an older file, whose B before a
// W is the gradient of the input.
func TestReadLoweredCSV(t *testing.T) {
	const lowered = "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0RESHARD,0REDUCE_GRAD\n" +
		"1UNSHARD,1RECV_F0,1F0,1RECV_F1,(1F1;1B0)OVERLAP_F_B,1SEND_B0,1B1,1SEND_B1,1REDUCE_GRAD,1RESHARD"
	p, err := ReadCSV(strings.NewReader(lowered))
	must.Do(t, err)
	if err := p.Check(); err != nil {
		t.Error(err)
	}
	both(t, p)
	var b strings.Builder
	if err := p.WriteCSV(&b); err != nil || !strings.Contains(b.String(), lowered[:80]) ||
		!strings.Contains(b.String(), lowered[len(lowered)-80:]) {
		t.Errorf("%s(%v), want\n%s", b.String(), err, lowered)
	}
	older, err := ReadCSV(strings.NewReader("0F0,0F1,0B0,0W0,0B1,0W1"))
	if err != nil || !strings.Contains(older.String(), "0F0 0F1 0I0 0W0 0I1 0W1 0U1") {
		t.Errorf("%v(%v)", older, err)
	}
}

// TestCSVFaults: errors of readers and writers are returned.
func TestCSVFaults(t *testing.T) {
	fault := errors.New("the disk is on fire")
	if _, err := ReadCSV(iotest.ErrReader(fault)); !errors.Is(err, fault) {
		t.Errorf("reading: %v", err)
	}
	r, w := io.Pipe()
	r.CloseWithError(fault)
	if err := parsed(t, small).WriteCSV(w); !errors.Is(err, fault) {
		t.Errorf("writing: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	fuzz(f, Parse, append(good, `schedule "a b" every=1 weights=stash`+"\nrank 0: 0F0 0I0 0W0 0U0",
		"# x\nschedule -\nrank 0:\nrank 1: 0F0", "schedule stages=1\nrank 0: 1B0",
		"plan x\naxis a groups=\nrank 0: 0F0\n0B0"))
}

func FuzzReadCSV(f *testing.F) {
	fuzz(f, func(text string) (*Plan, error) { return ReadCSV(strings.NewReader(text)) }, []string{
		"# schedule a stages=2 microbatches=2 every=2 weights=flush\n0F0,0F1,0B0,0B1,0U1\n1F0,1B0,1F1,1B1,1U1\n",
		"0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1,\n", "\"\"\n(0F1;3B0)OVERLAP_F_B,0UNSHARD",
	})
}

// fuzz calls all that takes a plan from outside: it must not panic or hang.
func fuzz(f *testing.F, read func(text string) (*Plan, error), seeds []string) {
	for _, text := range seeds {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := read(text)
		if err != nil || len(p.Blocks) >= 1000 || len(p.Ranks) >= 1000 { // for speed
			return
		}
		both(t, p)
		for r := range p.Ranks {
			_, _ = p.Flow(r)
		}
		_ = p.Check()
		_, _ = p.WithMessages()
		_, _ = p.WeightVersions()
		_, _ = p.Simulate(Costs{})
		_, _ = p.Memory(Sizes{})
		_, _ = p.Traffic(Sizes{})
		p.PeakActivations()
	})
}

const (
	zbv = "schedule zb-v stages=4\nrank 0: 0F0 0F1 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 0I1 0W1 0U1 3U1\n" +
		"rank 1: 1F0 2F0 1F1 2F1 2I0 2W0 1I0 1W0 2I1 2W1 1I1 1W1 1U1 2U1"
	zbh1 = "schedule zb-h1\nrank 0: 0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2 0U2\nrank 1: 1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 " +
		"1W2 1U2"
)

// gpipe is that schedule.
func gpipe(ranks, microbatches int) string {
	var b strings.Builder
	fmt.Fprintln(&b, "schedule gpipe")
	for r := range ranks {
		fmt.Fprintf(&b, "rank %d:", r)
		for _, pass := range "FB" {
			for m := range microbatches {
				fmt.Fprintf(&b, " %d%c%d", r, pass, m)
			}
		}
		fmt.Fprintf(&b, " %dU%d\n", r, microbatches-1)
	}
	return b.String()
}

// TestDraw draws timelines with times that are integers, fractions, and without a common unit.
func TestDraw(t *testing.T) {
	for _, test := range []struct {
		name     string
		timeline Timeline
		want     string
	}{
		{"two chunks", simulated(t, parsed(t, zbv), Equal()), `
rank 0 │A0  A1  ·   B0  B0i B0w B1  B1i B1w A0i A0w ·   A1i A1w
rank 1 │·   A0  B0  A1  B1  B0i B0w A0i A0w B1i B1w A1i A1w ·
A0 forward, B0i input gradient, B0w weight gradient, A, B, … a rank's blocks, · idle; a column is 1
`},
		{"updates and thirds", simulated(t, parsed(t, gpipe(2, 1)),
			Costs{Forward: []float64{1. / 3}, Backward: []float64{2. / 3}, Update: []float64{1}}), `
rank 0 │0  ·  ·  ·  0b─── u───────
rank 1 │·  0  0b─── u─────── ·  ·
0 forward, 0b backward, u update, · idle; a column is 0.333333333
`},
		{"no unit", simulated(t, parsed(t, zbh1),
			Costs{Forward: []float64{3.14159}, InputGrad: []float64{2.71828}, WeightGrad: []float64{1.41421}}), `
rank 0 │0───── 1────   ·  ·0i─── 0w 2───── 1i── 1w   · 2i─── 2w
rank 1 │·  ·  ·0──── 0i─── 1───── 1i─── 0w 2──── 2i─── 1w 2w  ·
0 forward, 0i input gradient, 0w weight gradient, · idle; a column is 1.41421
`},
		{"no time", simulated(t, parsed(t, gpipe(1, 1)), Costs{Forward: []float64{0}, Backward: []float64{0}}), `
rank 0 │
· idle; drawn to scale, with f, b, i, w, u for passes that have no room for a number
`},
	} {
		if got := "\n" + test.timeline.String(); got != test.want {
			t.Errorf("%s: got%swant%s", test.name, got, test.want)
		}
	}
}

// TestDrawScale draws what would be too wide within the width, each pass where it is.
func TestDrawScale(t *testing.T) {
	for _, timeline := range []Timeline{
		simulated(t, parsed(t, gpipe(3, 400)), Equal()),
		simulated(t, parsed(t, gpipe(3, 3)), Costs{Forward: []float64{1e-9}}),
	} {
		text := timeline.String()
		if !strings.Contains(text, "drawn to scale") {
			t.Errorf("not to scale:\n%s", text)
		}
		for i, line := range strings.Split(text, "\n")[:len(timeline.Start)] {
			_, row, _ := strings.Cut(line, "│")
			runes := []rune(row)
			if len(runes) > drawWidth || len(runes) < drawWidth/2 {
				t.Errorf("rank %d: %d characters, want at most %d: %s", i, utf8.RuneCountInString(row), drawWidth, row)
			}
			first := int(timeline.Start[i] / timeline.Makespan * drawWidth)
			if strings.Trim(string(runes[:first]), "·") != "" {
				t.Errorf("rank %d starts before %d: %s", i, first, row)
			}
		}
	}
}

func TestLetter(t *testing.T) {
	for n, want := range map[int]string{0: "A", 25: "Z", 26: "AA", 27: "AB", 52: "BA"} {
		if got := letter(n); got != want {
			t.Errorf("letter(%d) is %s, want %s", n, got, want)
		}
	}
}
