package chart

import (
	"errors"
	"sync"
	"time"

	"github.com/janpfeifer/gonb/gonbui"
)

// Live is an output that a loop updates, such as a loss curve during training. Its methods may be called from several
// goroutines.
type Live struct {
	mu     sync.Mutex
	place  place
	id     string
	now    func() time.Time
	next   time.Time // before it, charts wait
	latest []*Chart
	closed bool
}

// liveInterval limits how often charts are drawn: drawing one takes tens of milliseconds.
const liveInterval = 250 * time.Millisecond

// NewLive starts an empty output. Close draws its final state:
//
//	live := chart.NewLive()
//	defer live.Close()
//	for step := range steps {
//		...
//		live.Show(chart.Line("loss", "step", "loss (nats)", chart.Series{Name: "train", Y: losses}))
//	}
func NewLive() *Live { return &Live{place: here(), id: "chart-" + gonbui.UniqueId(), now: time.Now} }

// Show replaces the output by these charts. A notebook draws them at once if the last drawing was at least 250 ms ago;
// else a later call or Close does. They are static images until Close. A terminal prints them at Close only. Show
// returns the errors of [Show] for the charts that it draws, and an error after Close.
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
	// The interval starts when drawing ends, so that slow drawings do not take all of the loop's time.
	l.next = l.now().Add(liveInterval)
	return err
}

// Close draws the last charts given to Show, interactive where possible, or prints them in a terminal. It does nothing
// when called again or if nothing was shown. The errors are those of [Show].
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
