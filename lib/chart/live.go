package chart

import (
	"errors"
	"sync"
	"time"

	"github.com/janpfeifer/gonb/gonbui"
)

// Live is an output that a loop keeps up to date: a loss curve while the model trains. Its methods may be called from
// several goroutines.
type Live struct {
	mu     sync.Mutex
	place  place
	id     string
	now    func() time.Time
	next   time.Time // before it, charts wait
	latest []*Chart
	closed bool
}

// liveInterval keeps drawing, at some tens of milliseconds a chart, a small part of the loop's time.
const liveInterval = 250 * time.Millisecond

// NewLive starts an output with nothing in it. Close shows the last state for good:
//
//	live := chart.NewLive()
//	defer live.Close()
//	for step := range steps {
//		...
//		live.Show(chart.Line("loss", "step", "loss (nats)", chart.Series{Name: "train", Y: losses}))
//	}
func NewLive() *Live {
	return &Live{place: here(), id: "chart-" + gonbui.UniqueId(), now: time.Now}
}

// Show replaces the output by these charts. In a notebook it draws them at once if a quarter of a second has passed
// since the last drawing, and else keeps them for a later call or for Close; until Close they are images. In a terminal
// it only keeps them. The errors are those of [Show] for the charts it draws, or that the output is closed.
func (l *Live) Show(charts ...*Chart) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return errors.New("chart: Show after Close of a live output")
	}
	l.latest = append([]*Chart(nil), charts...)
	if l.place.send == nil || l.now().Before(l.next) {
		return nil
	}
	err := l.place.show(l.id, false, l.latest)
	// The pause starts when drawing ends: a slow drawing must not take the whole of the loop's time.
	l.next = l.now().Add(liveInterval)
	return err
}

// Close draws the last charts given to Show, now able to turn live, or prints them in a terminal. It always draws, and
// does nothing when called again or if nothing was shown. The errors are those of [Show].
func (l *Live) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.latest == nil {
		l.closed = true
		return nil
	}
	l.closed = true
	return l.place.show(l.id, true, l.latest)
}
