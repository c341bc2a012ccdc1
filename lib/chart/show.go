package chart

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/janpfeifer/gonb/gonbui"
	"github.com/janpfeifer/gonb/gonbui/protocol"
)

// Show shows charts where the program runs: in a notebook as pictures, several of them side by side, which are PNG
// images where letters and shapes allow it and SVG ones elsewhere; in a terminal as [Chart.Text] on the standard
// output.
//
// A chart that cannot be drawn is replaced by the reason, where the chart would be and, in a notebook, on the standard
// error, since a cell seldom looks at the error returned; the others are still shown. That error joins all reasons, and
// says so if the notebook did not take the output.
func Show(charts ...*Chart) error { return here().show("", true, charts) }

// place is where output goes: a notebook, or else a terminal.
type place struct {
	send     func(*protocol.DisplayData) error // nil in a terminal
	terminal io.Writer
}

func here() place {
	if gonbui.IsNotebook {
		return place{send: sendToNotebook}
	}
	return place{terminal: os.Stdout}
}

// show sends the charts as one output. A display id replaces the output that had the same one. Charts without a script
// are there for a moment: the quickest picture does.
func (p place) show(displayID string, script bool, charts []*Chart) error {
	if len(charts) == 0 {
		return errors.New("chart: no chart to show")
	}
	texts := make([]string, len(charts))
	pictures := make([]string, len(charts))
	var failed []error
	for i, c := range charts {
		c = c.among(len(charts))
		texts[i] = c.Text()
		err := c.Err()
		if p.send != nil && err == nil {
			pictures[i], err = c.fragment(script, script)
		}
		if err != nil {
			texts[i] = err.Error() + "\n"
			pictures[i] = "<pre>" + escape(err.Error()) + "</pre>"
			failed = append(failed, err)
		}
	}
	text := strings.Join(texts, "\n")
	var err error
	if p.send == nil {
		_, err = io.WriteString(p.terminal, text)
	} else {
		if len(failed) > 0 {
			fmt.Fprintln(os.Stderr, errors.Join(failed...)) // so that a headless run does not pass
		}
		err = p.send(&protocol.DisplayData{DisplayID: displayID, Data: map[protocol.MIMEType]any{
			protocol.MIMETextHTML:  strings.Join(pictures, "\n"),
			protocol.MIMETextPlain: text,
		}})
	}
	return errors.Join(append(failed, err)...)
}

// among makes a chart small enough that two stand side by side, unless its size was set.
func (c *Chart) among(n int) *Chart {
	if n == 1 || c.Err() != nil || c.width != 0 {
		return c
	}
	_, height := c.size()
	if _, ok := c.kind.(*gantt); ok {
		return c
	}
	return c.Size(450, max(300, min(height, 360)))
}

// The kernel drops what is still under way when the program ends, so each output is waited for.
const syncLimit = 10 * time.Second

func sendToNotebook(data *protocol.DisplayData) error {
	gonbui.SendData(data)
	if err := gonbui.Error(); err != nil {
		return fmt.Errorf("chart: sending to the notebook: %w", err)
	}
	done := make(chan struct{})
	go func() {
		gonbui.Sync()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-time.After(syncLimit):
		return fmt.Errorf("chart: the notebook did not confirm the output within %v", syncLimit)
	}
}
