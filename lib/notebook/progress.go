package notebook

import (
	"fmt"
	"iter"
	"strings"
	"sync"
	"time"
	"unicode"
)

// Progress yields 0, 1, … total-1 and shows on a [Bar] how many of them the loop's body has finished.
//
//	for step := range notebook.Progress("training", 1000) {
//		…
//	}
//
// The bar ends with the loop, also after a break. If total is not positive, it yields nothing.
func Progress(label string, total int) iter.Seq[int] {
	return func(yield func(int) bool) {
		bar := NewBar(label, max(total, 0))
		defer bar.Done()
		for i := range total {
			if !yield(i) {
				return
			}
			bar.Add(1)
		}
	}
}

// Bar is a progress bar that counts steps. While it runs it shows the count, the rate, the remaining time at the
// average rate, and a note. At the end it shows only the label and the count, so that a notebook's output is the same
// in every run.
//
// In a notebook it is drawn in the cell's output and updated in place, at most ten times a second. On a terminal it is
// drawn on standard error. If standard error is no terminal, it writes a line there every five seconds.
//
// The methods may be called from several goroutines. Only they redraw the bar: there is no goroutine in the background.
type Bar struct {
	mu      sync.Mutex
	state   state
	started time.Time
	drawn   time.Time // when it was last drawn
	done    bool
	now     func() time.Time
	display display
}

// NewBar draws a bar at zero for the given number of steps; end it with [Bar.Done]. If total is not positive, the
// number of steps is not known: the bar counts without a remaining time.
func NewBar(label string, total int) *Bar { return newBar(label, total, time.Now, openDisplay) }

func newBar(label string, total int, now func() time.Time, open func(state) display) *Bar {
	b := &Bar{state: state{label: oneLine(label), total: max(total, 0)}, now: now}
	b.started = now()
	b.drawn = b.started
	b.display = open(b.state)
	b.display.draw(b.state)
	return b
}

// Step counts one step and sets the note, formatted as by [fmt.Sprintf]. An empty format clears the note.
func (b *Bar) Step(format string, args ...any) {
	note := oneLine(fmt.Sprintf(format, args...))
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state.note = note
	b.add(1)
}

// Add adds n to the count, down to zero if n is negative. It does not change the note.
func (b *Bar) Add(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.add(n)
}

func (b *Bar) add(n int) {
	if b.done {
		return
	}
	b.state.count = max(b.state.count+n, 0)
	now := b.now()
	if now.Sub(b.drawn) < b.display.interval() {
		return
	}
	b.drawn = now
	b.state.elapsed = now.Sub(b.started)
	b.display.draw(b.state)
}

// Done draws the final state. Later calls of any method do nothing.
func (b *Bar) Done() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done {
		return
	}
	b.done = true
	b.state.elapsed = b.now().Sub(b.started)
	b.display.finish(b.state)
}

// state is what a bar shows.
type state struct {
	label        string
	total, count int // total is zero if it is not known
	elapsed      time.Duration
	note         string
}

// result is the text after the bar has ended.
func (s state) result() string {
	text := fmt.Sprint(s.count)
	if s.total > 0 {
		text = fmt.Sprintf("%d of %d", s.count, s.total)
	}
	if s.label != "" {
		text = s.label + ": " + text
	}
	return text
}

// running is the text beside the bar, or without one, while it runs.
func (s state) running() string {
	parts := []string{s.result()}
	if seconds := s.elapsed.Seconds(); s.count > 0 && seconds > 0 {
		parts = append(parts, rate(float64(s.count)/seconds))
		if left := s.total - s.count; left > 0 {
			parts = append(parts, remaining(float64(left)/float64(s.count)*seconds))
		}
	}
	if s.note != "" {
		parts = append(parts, s.note)
	}
	return strings.Join(parts, " · ")
}

func rate(perSecond float64) string {
	if perSecond < 1 {
		return fmt.Sprintf("%.3g s each", 1/perSecond)
	}
	if perSecond < 1000 {
		return fmt.Sprintf("%.3g/s", perSecond)
	}
	return fmt.Sprintf("%.0f/s", perSecond)
}

// remaining formats seconds as a float because a slow start can predict more than a time.Duration holds.
func remaining(seconds float64) string {
	switch {
	case seconds < 1:
		return "less than 1s left"
	case seconds < 100*3600:
		return time.Duration(seconds*float64(time.Second)).Round(time.Second).String() + " left"
	}
	return fmt.Sprintf("%.0f days left", seconds/(24*3600))
}

// oneLine replaces line ends and other control characters by spaces, because a bar is one line.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text)
}
