package schedule

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
)

// TestRoundTrip writes and reads random schedules, sound and not, under awkward names.
func TestRoundTrip(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	names := []string{"", "1f1b", "two words", "a\nb", `"quoted"`, "a=b", "#", "ü", "schedule x", "stages=3"}
	for i := range 300 {
		s := some(rng, 5, 8)
		s.Name = names[i%len(names)]
		if i%3 == 0 {
			mutate(rng, &s)
		}
		if i%7 == 0 {
			s.Ranks[len(s.Ranks)-1] = nil
		}
		for r, list := range s.Ranks {
			if len(list) == 0 {
				s.Ranks[r] = nil
			}
		}
		both(t, s)
	}
}

// both writes and reads a schedule in both forms.
func both(t *testing.T, s Schedule) {
	t.Helper()
	if got, err := Parse(s.String()); err != nil || !reflect.DeepEqual(got, s) {
		t.Fatalf("as text:\n%vcomes back as\n%v(%v)", s, got, err)
	}
	if len(s.Ranks) == 0 {
		return // CSV has no form for that
	}
	var b bytes.Buffer
	if err := s.WriteCSV(&b); err != nil {
		t.Fatal(err)
	}
	written := b.String()
	if got, err := ReadCSV(&b); err != nil || !reflect.DeepEqual(got, s) {
		t.Fatalf("as CSV:\n%s\ncomes back as\n%v(%v)", written, got, err)
	}
}

func TestParse(t *testing.T) {
	s, err := Parse("# by hand\n\nschedule mine\n  rank  0 : 0F0  0F1 0B0 0B1 0U1\nrank 1: 1F0 1B0 1F1 1B1 1U1\n")
	if err != nil {
		t.Fatal(err)
	}
	want, err := OneFOneB(2, 2)
	if err != nil {
		t.Fatal(err)
	}
	want.Name = "mine"
	if !reflect.DeepEqual(s, want) {
		t.Errorf("%v, want\n%v", s, want)
	}
	for _, c := range []struct{ text, want string }{
		{"", "the text is empty"},
		{"# only this", "the text is empty"},
		{"rank 0: 0F0", `line 1: "rank 0: 0F0": want "schedule NAME`},
		{"\nschedule a b", `line 2: "b": want stages=N`},
		{"schedule a stages=0", "want stages=N with N from 1 to"},
		{"schedule a stages=-1", "want stages=N"},
		{"schedule a microbatches=99999999999999999999", "want microbatches=N"},
		{"schedule a every=x", "want every=N"},
		{"schedule a weights=old", "want weights=flush, stash, vertical or double"},
		{"schedule a=b stages=1", `name "a=b": quote`},
		{"schedule a\nrank 1: 0F0", `line 2: "rank 1: 0F0": want the list of the next rank, "rank 0: 0F0`},
		{"schedule a\nrank 0 0F0", "want the list of the next rank"},
		{"schedule a\nrank 0: 0F0 0X0", `line 2: position 1: "0X0": want stage, pass`},
		{"schedule a\nrank 0: 0F", "as in 2F0"},
		{"schedule a\nrank 0: F0", "as in 2F0"},
		{"schedule a\nrank 0: 0F0F0", "as in 2F0"},
		{"schedule a\nrank 0: +1F0", "as in 2F0"},
		{"schedule a\nrank 0: 9999999F0", "as in 2F0"},
	} {
		if _, err := Parse(c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.text, err, c.want)
		}
	}
	if _, err := Parse("schedule a\nrank 0:" + strings.Repeat(" 0F0", maxActions+1)); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("too many actions: %v", err)
	}
}

func TestReadCSV(t *testing.T) {
	want, err := OneFOneB(2, 2)
	if err != nil {
		t.Fatal(err)
	}
	want.Name = ""
	for _, text := range []string{
		"0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1,\n",           // as PyTorch dumps it
		"0F0,0F1,,0B0,,0B1\r\n,1F0,1B0,1F1,1B1\r\n\r\n",    // as Python's csv ends lines
		" 0F0, 0F1,\"0B0\",0B1\n# a note\n1F0,1B0,1F1,1B1", // by hand
		"0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0RESHARD,0REDUCE_GRAD\n1RECV_F0,1F0,1B0,1SEND_B0,(1F1;1B1)OVERLAP_F_B",
		"0F0,0F1,0B0,0B1,0U1\n1F0,1B0,1F1,1B1,1U1\n",
	} {
		got, err := ReadCSV(strings.NewReader(text))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q is\n%v(%v), want\n%v", text, got, err, want)
		}
	}
	for _, c := range []struct{ text, want string }{
		{"", "no records"},
		{"# schedule a stages=2\n", "no records"},
		{"# schedule a stages=x\n0F0", "line 1"},
		{"(0F0;what)OVERLAP_F_B", `line 1: rank 0: "what": want stage, pass`},
		{"0F0\n1F0,what", `line 2: rank 1: "what": want stage, pass`},
		{strings.Repeat("0F0,", maxActions+1), "more than"},
		{strings.Repeat("\"\"\n", maxActions+1), "more than"},
		{strings.Repeat(",", maxCSV+1), "longer than"},
	} {
		if _, err := ReadCSV(strings.NewReader(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.40q: %v, want %q", c.text, err, c.want)
		}
	}
}

// TestCSVFaults: what readers and writers say comes back.
func TestCSVFaults(t *testing.T) {
	fault := errors.New("the disk is on fire")
	if _, err := ReadCSV(iotest.ErrReader(fault)); !errors.Is(err, fault) {
		t.Errorf("reading: %v", err)
	}
	s, err := GPipe(2, 2)
	if err != nil {
		t.Fatal(err)
	}
	r, w := io.Pipe()
	r.CloseWithError(fault)
	if err := s.WriteCSV(w); !errors.Is(err, fault) {
		t.Errorf("writing: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"schedule 1f1b stages=2 microbatches=2 every=2 weights=flush\nrank 0: 0F0 0F1 0B0 0B1 0U1\nrank 1: 1F0 1B0 1F1 1B1 1U1\n",
		"schedule \"a b\" every=1 weights=stash\nrank 0: 0F0 0I0 0W0 0U0",
		"# x\nschedule -\nrank 0:\nrank 1: 0F0",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if s, err := Parse(text); err == nil {
			both(t, s)
			anything(s)
		}
	})
}

func FuzzReadCSV(f *testing.F) {
	for _, text := range []string{
		"# schedule a stages=2 microbatches=2 every=2 weights=flush\n0F0,0F1,0B0,0B1,0U1\n1F0,1B0,1F1,1B1,1U1\n",
		"0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1,\n",
		"\"\"\n(0F1;3B0)OVERLAP_F_B,0UNSHARD",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if s, err := ReadCSV(strings.NewReader(text)); err == nil {
			both(t, s)
			anything(s)
		}
	})
}

// anything calls all that takes a schedule from outside: it must not panic or hang.
func anything(s Schedule) {
	_ = s.Check()
	_, _ = s.Programs()
	_, _ = s.KeptVersions()
	s.PeakActivations()
	s.Holders()
}
