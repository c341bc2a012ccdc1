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

// Show shows charts. In a notebook they are images, side by side if there are several: PNG where the chart's shapes and
// letters allow it, else SVG. In a terminal Show prints each [Chart.Text] to standard output.
//
// If a chart cannot be drawn, Show writes the error in its place and goes on with the others. It returns all errors
// joined, also one if the notebook rejected the output. In a notebook it also prints them to standard error, because
// cells seldom check the returned error.
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

// show sends the charts as one output, which replaces an earlier output with the same displayID. Without script the
// charts are soon replaced, so it draws the kind of image that is fastest.
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

// among shrinks a chart, unless its size was set, so that two fit side by side.
func (c *Chart) among(n int) *Chart {
	if n == 1 || c.Err() != nil || c.width != 0 {
		return c
	}
	if _, ok := c.kind.(*gantt); ok {
		return c
	}
	_, height := c.size()
	return c.Size(450, max(300, min(height, 360)))
}

// The kernel drops unfinished output when the program ends, so show waits for each output.
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
