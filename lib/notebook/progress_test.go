package notebook

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// recorder is a display that remembers what it was given.
type recorder struct {
	every    time.Duration
	drawn    []string
	finished []string
}

func (r *recorder) interval() time.Duration { return r.every }
func (r *recorder) draw(s state)            { r.drawn = append(r.drawn, s.running()) }
func (r *recorder) finish(s state)          { r.finished = append(r.finished, s.result()) }

// clock is a time that moves only when it is told to.
type clock struct{ t time.Time }

func (c *clock) now() time.Time { return c.t }

func newTestBar(label string, total int) (*Bar, *clock, *recorder) {
	c, r := &clock{time.Unix(1000, 0)}, &recorder{every: 100 * time.Millisecond}
	return newBar(label, total, c.now, func(state) display { return r }), c, r
}

func TestBarDrawsAtMostEveryInterval(t *testing.T) {
	bar, c, r := newTestBar("training", 1000)
	for i := range 1000 {
		c.t = c.t.Add(time.Millisecond)
		bar.Step("loss %d", 1000-i)
	}
	bar.Done()
	bar.Done()
	bar.Step("too late")
	// One drawing at the start, and one after each 100 steps of 1 ms.
	want := []string{"training: 0 of 1000", "training: 100 of 1000 · 1000/s · less than 1s left · loss 901"}
	if len(r.drawn) != 11 || !slices.Equal(r.drawn[:2], want) {
		t.Errorf("%d drawings: %q", len(r.drawn), r.drawn)
	}
	if !slices.Equal(r.finished, []string{"training: 1000 of 1000"}) {
		t.Errorf("at the end: %q", r.finished)
	}
}

func TestBarTexts(t *testing.T) {
	for want, s := range map[string]state{
		"a: 0 of 4":                          {label: "a", total: 4},
		"1 of 4":                             {total: 4, count: 1},
		"a: 3 · 1.5/s":                       {label: "a", count: 3, elapsed: 2 * time.Second},
		"a: 1 of 4 · 90 s each · 4m30s left": {label: "a", total: 4, count: 1, elapsed: 90 * time.Second},
		"a: 5 of 4 · 5/s · n":                {label: "a", total: 4, count: 5, elapsed: time.Second, note: "n"},
		"1 of 1000000 · 8.64e+04 s each · 999999 days left": {total: 1e6, count: 1, elapsed: 24 * time.Hour},
		"1 of 4611686018427387904 · 3.6e+03 s each · 192153584101141152 days left": {
			total: 1 << 62, count: 1, elapsed: time.Hour},
		"1 of 2 · 1000000/s · less than 1s left": {total: 2, count: 1, elapsed: time.Microsecond},
	} {
		if got := s.running(); got != want {
			t.Errorf("running: got %q, want %q", got, want)
		}
		if result, _, _ := strings.Cut(want, " · "); s.result() != result {
			t.Errorf("result: got %q, want %q", s.result(), result)
		}
	}
}

func TestBarCounts(t *testing.T) {
	bar, _, r := newTestBar("two\nlines\x1b[31m", -5)
	bar.Add(7)
	bar.Add(-2)
	bar.Step("%d%%", 100)
	if bar.state.note != "100%" {
		t.Errorf("note %q", bar.state.note)
	}
	bar.Add(-100)
	bar.Step("")
	bar.Done()
	if want := "two lines [31m: 1"; r.finished[0] != want {
		t.Errorf("got %q, want %q", r.finished[0], want)
	}
}

func TestBarFromSeveralGoroutines(t *testing.T) {
	bar, _, r := newTestBar("work", 400)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 100 {
				bar.Step("item %d", i)
			}
		})
	}
	wg.Wait()
	bar.Done()
	if r.finished[0] != "work: 400 of 400" {
		t.Errorf("got %q", r.finished)
	}
}

func TestCellDisplay(t *testing.T) {
	var ids, htmls, texts []string
	d := newCellDisplay(func(id, html, text string) {
		ids, htmls, texts = append(ids, id), append(htmls, html), append(texts, text)
	})
	s := state{label: `<b>"a" & b`, total: 10, count: 12, note: "<script>"}
	d.draw(s)
	s.total = 0
	d.draw(s)
	d.finish(s)
	want := []string{
		`<div><progress aria-label="&lt;b&gt;&#34;a&#34; &amp; b" max="10" value="10"></progress> ` +
			`&lt;b&gt;&#34;a&#34; &amp; b: 12 of 10 · &lt;script&gt;</div>`,
		`<div><progress aria-label="&lt;b&gt;&#34;a&#34; &amp; b"></progress> ` +
			`&lt;b&gt;&#34;a&#34; &amp; b: 12 · &lt;script&gt;</div>`,
		`<div>&lt;b&gt;&#34;a&#34; &amp; b: 12</div>`,
	}
	if !slices.Equal(htmls, want) {
		t.Errorf("got  %q\nwant %q", htmls, want)
	}
	if texts[2] != `<b>"a" & b: 12` {
		t.Errorf("text %q", texts[2])
	}
	if ids[0] == "" || ids[0] != ids[1] || ids[1] != ids[2] || newCellDisplay(nil).id == ids[0] {
		t.Errorf("ids %q", ids)
	}
}

func TestLineDisplay(t *testing.T) {
	var out bytes.Buffer
	c := &clock{time.Unix(1000, 0)}
	bar := newBar("training", 100, c.now, func(state) display { return lineDisplay{&out} })
	for range 11 {
		c.t = c.t.Add(time.Second)
		bar.Add(1)
	}
	bar.Done()
	want := "training: 5 of 100 · 1/s · 1m35s left\ntraining: 10 of 100 · 1/s · 1m30s left\ntraining: 11 of 100\n"
	if out.String() != want {
		t.Errorf("got  %q\nwant %q", out.String(), want)
	}
}

func ExampleProgress() {
	sum := 0
	for step := range Progress("adding", 5) {
		sum += step
	}
	fmt.Println(sum)
	// Output: 10
}

func ExampleBar() {
	loss := 8.0
	bar := NewBar("training", 3)
	for range 3 {
		loss /= 2
		bar.Step("loss %.1f", loss)
	}
	bar.Done()
	fmt.Println(loss)
	// Output: 1
}

func TestProgress(t *testing.T) {
	var got []int
	for i := range Progress("all", 3) {
		got = append(got, i)
	}
	for i := range Progress("left early", 10) {
		if i == 2 {
			break
		}
		got = append(got, i)
	}
	for i := range Progress("none", -1) {
		got = append(got, i)
	}
	if !slices.Equal(got, []int{0, 1, 2, 0, 1}) {
		t.Errorf("got %v", got)
	}
}
