package main

import (
	"fmt"
	"os"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// progress shows the progress of long work on standard error: on a terminal as one line that is redrawn, elsewhere as a
// line whenever the stage changes.
type progress struct {
	bar   *progressbar.ProgressBar // nil where standard error is no terminal
	title string
	stage string
	total int
}

func newProgress(title string) *progress {
	return &progress{title: title}
}

// show shows that done of total steps of a stage are done (0 means unknown). It is a kernel.Report.
func (p *progress) show(stage string, done, total int, what string) {
	if !term.IsTerminal(int(os.Stderr.Fd())) {
		if p.stage != stage {
			p.stage = stage
			fmt.Fprintf(os.Stderr, "%s: %s: %s\n", p.title, stage, what)
		}
		return
	}
	if p.stage != stage || p.total != total || p.bar == nil {
		p.done()
		p.stage, p.total = stage, total
		steps := total
		if steps == 0 {
			steps = -1 // a spinner
		}
		p.bar = progressbar.NewOptions(steps,
			progressbar.OptionSetWriter(os.Stderr),
			progressbar.OptionSetWidth(16),
			progressbar.OptionSetPredictTime(false),
			progressbar.OptionClearOnFinish(),
		)
	}
	p.bar.Describe(fmt.Sprintf("%-45.45s", stage+": "+what)) // with the bar, no wider than 80 columns
	p.bar.Set(done)
}

// done removes the bar.
func (p *progress) done() {
	if p.bar != nil {
		p.bar.Finish()
		p.bar = nil
	}
}
