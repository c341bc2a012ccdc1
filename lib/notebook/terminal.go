//go:build !resident

package notebook

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// openTerminal returns a display on standard error if that is a terminal, else nil.
func openTerminal(s state) display {
	if term.IsTerminal(int(os.Stderr.Fd())) {
		return newTerminalDisplay(os.Stderr, s)
	}
	return nil
}

// terminalDisplay draws on a terminal.
type terminalDisplay struct {
	w   io.Writer
	bar *progressbar.ProgressBar
}

func newTerminalDisplay(w io.Writer, s state) *terminalDisplay {
	return &terminalDisplay{w, progressbar.NewOptions(cmp.Or(s.total, -1), // not known
		progressbar.OptionSetWriter(w),
		progressbar.OptionSetWidth(20),
		progressbar.OptionSetPredictTime(false), // the text tells the time
		progressbar.OptionSetElapsedTime(false),
		progressbar.OptionShowDescriptionAtLineEnd(),
		progressbar.OptionSetSpinnerChangeInterval(0), // no goroutine that turns the spinner
	)}
}

func (*terminalDisplay) interval() time.Duration { return 100 * time.Millisecond }

func (d *terminalDisplay) draw(s state) { d.show(s, s.running()) }

func (d *terminalDisplay) finish(s state) {
	d.show(s, s.result())
	_ = d.bar.Exit()
	fmt.Fprintln(d.w)
}

func (d *terminalDisplay) show(s state, text string) {
	d.bar.Describe(text)
	if s.total > 0 {
		s.count = min(s.count, s.total) // the bar rejects more
	}
	_ = d.bar.Set(s.count) // a terminal that cannot be written to is no reason to stop
}
