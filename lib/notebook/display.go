package notebook

import (
	"fmt"
	"html"
	"io"
	"os"
	"time"

	"github.com/janpfeifer/gonb/gonbui"
	"github.com/janpfeifer/gonb/gonbui/protocol"
)

// display is where a bar is drawn.
type display interface {
	interval() time.Duration // the least time between two drawings, unless one is the first or the last
	draw(state)
	finish(state) // draws the last state
}

// openDisplay chooses the display for this process.
func openDisplay(s state) display {
	if gonbui.IsNotebook && gonbui.Open() == nil {
		return newCellDisplay(func(id, html, text string) {
			gonbui.SendData(&protocol.DisplayData{
				Data:      map[protocol.MIMEType]any{protocol.MIMETextHTML: html, protocol.MIMETextPlain: text},
				DisplayID: id,
			})
		})
	}
	if terminal := openTerminal(s); terminal != nil {
		return terminal
	}
	return lineDisplay{os.Stderr}
}

// cellDisplay draws in the output of a notebook cell: HTML without scripts, and text for readers that show none.
type cellDisplay struct {
	id   string
	send func(id, html, text string) // shows the output block called id, in place of what it showed
}

func newCellDisplay(send func(id, html, text string)) cellDisplay {
	return cellDisplay{"progress_" + gonbui.UniqueId(), send}
}

func (cellDisplay) interval() time.Duration { return 100 * time.Millisecond }

func (d cellDisplay) draw(s state) {
	// Without a total, an indeterminate progress element shows only that something runs.
	position, text := "", s.running()
	if s.total > 0 {
		position = fmt.Sprintf(` max="%d" value="%d"`, s.total, min(s.count, s.total))
	}
	d.send(d.id, fmt.Sprintf(`<div><progress aria-label="%s"%s></progress> %s</div>`,
		html.EscapeString(s.label), position, html.EscapeString(text)), text)
}

func (d cellDisplay) finish(s state) {
	text := s.result()
	d.send(d.id, "<div>"+html.EscapeString(text)+"</div>", text)
	flushDisplay() // what a cell displays just before it ends can be lost otherwise
}

// lineDisplay writes lines, for logs.
type lineDisplay struct{ w io.Writer }

func (lineDisplay) interval() time.Duration { return 5 * time.Second }

func (d lineDisplay) draw(s state) {
	if s.count > 0 {
		fmt.Fprintln(d.w, s.running())
	}
}

func (d lineDisplay) finish(s state) { fmt.Fprintln(d.w, s.result()) }

// flushLimit bounds the wait for a kernel that does not answer.
const flushLimit = 10 * time.Second

// flushDisplay waits until the kernel has received all that this cell displayed.
func flushDisplay() {
	if !gonbui.IsNotebook || gonbui.Open() != nil { // Sync waits forever for a kernel that cannot be reached
		return
	}
	done := make(chan struct{})
	go func() {
		gonbui.Sync()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(flushLimit):
	}
}
