package chart

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/janpfeifer/gonb/gonbui/protocol"
	"github.com/shardbook/shardbook/internal/must"
)

// notebook records what a notebook would show.
type notebook struct {
	sent []*protocol.DisplayData
	err  error
}

func (n *notebook) place() place {
	return place{send: func(d *protocol.DisplayData) error {
		n.sent = append(n.sent, d)
		return n.err
	}}
}

func (n *notebook) html(i int) string { return n.sent[i].Data[protocol.MIMETextHTML].(string) }

func TestShowInNotebook(t *testing.T) {
	n := &notebook{}
	good, bad := Line("good", "x", "y", Series{Y: []float64{1}}), Line("<bad>", "x", "y")
	err := n.place().show("", true, []*Chart{good, bad, nil})
	if err == nil || !strings.Contains(err.Error(), "no series") || !strings.Contains(err.Error(), "no chart") {
		t.Errorf("error %v does not name both failures", err)
	}
	if len(n.sent) != 1 {
		t.Fatalf("%d outputs, want 1", len(n.sent))
	}
	got := n.html(0)
	if strings.Count(got, "<img ") != 1 || strings.Count(got, "<pre>") != 2 || strings.Contains(got, "<bad>") {
		t.Errorf("want one picture and two reasons, got %.200s", got)
	}
	got = n.sent[0].Data[protocol.MIMETextPlain].(string)
	if !strings.Contains(got, "good\n") || !strings.Contains(got, "no series") {
		t.Errorf("plain text is %q", got)
	}
	n.err = errors.New("pipe closed")
	if err := n.place().show("", true, []*Chart{good}); !errors.Is(err, n.err) {
		t.Errorf("error %v, want %v", err, n.err)
	}
	if err := Show(); err == nil {
		t.Error("Show of nothing: no error")
	}
}

func TestShowInTerminal(t *testing.T) {
	var out strings.Builder
	charts := []*Chart{Line("first", "x", "y", Series{Y: []float64{1, 2}}), Table("second", []string{"a"}, nil)}
	must.Do(t, (place{terminal: &out}).show("", true, charts))
	if want := charts[0].Text() + "\n" + charts[1].Text(); out.String() != want {
		t.Errorf("printed %q, want %q", out.String(), want)
	}
}

func TestSeveralAreSmaller(t *testing.T) {
	c := Line("a", "x", "y", Series{Y: []float64{1}})
	alone, _ := c.among(1).size()
	two, _ := c.among(2).size()
	if set, _ := c.Size(700, 300).among(2).size(); two >= alone || set != 700 {
		t.Errorf("width alone %d, of two %d, as set %d", alone, two, set)
	}
}

func TestLive(t *testing.T) {
	n := &notebook{}
	now := time.Unix(0, 0)
	live := &Live{place: n.place(), id: "id", now: func() time.Time { return now }}
	state := func(i int) *Chart { return Line("state", "x", "y", Series{Y: make([]float64, i+1)}) }
	// Ten states a tenth of a second apart: drawn at 0, 0.3, 0.6 and 0.9 s, and once more at the end.
	for i := range 10 {
		must.Do(t, live.Show(state(i)))
		now = now.Add(liveInterval * 4 / 10)
	}
	for range 2 {
		must.Do(t, live.Close())
	}
	if len(n.sent) != 5 {
		t.Fatalf("%d outputs, want 5", len(n.sent))
	}
	for i, d := range n.sent {
		if d.DisplayID != "id" {
			t.Errorf("output %d has display id %q", i, d.DisplayID)
		}
		if script := strings.Contains(n.html(i), "<script>"); script != (i == 4) {
			t.Errorf("output %d: script is %v", i, script)
		}
	}
	if want, _ := state(9).fragment(true, true); n.html(4) != want {
		t.Error("the last output is not the last state")
	}
	if err := live.Show(state(0)); err == nil {
		t.Error("Show after Close: no error")
	}
	n = &notebook{}
	if err := (&Live{place: n.place(), now: time.Now}).Close(); err != nil || len(n.sent) != 0 {
		t.Errorf("Close of nothing: error %v, %d outputs", err, len(n.sent))
	}
}

func TestLiveFromSeveralGoroutines(t *testing.T) {
	n := &notebook{}
	live := &Live{place: n.place(), now: time.Now}
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 20 {
				live.Show(Table("t", []string{"a"}, nil))
			}
		})
	}
	group.Wait()
	if err := live.Close(); err != nil || len(n.sent) == 0 {
		t.Errorf("error %v, %d outputs", err, len(n.sent))
	}
}
