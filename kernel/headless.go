package kernel

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/shardbook/shardbook/internal/command"
)

//go:embed headless.py
var headless string

// DefaultCellTimeout is the default of Run.Timeout.
const DefaultCellTimeout = 10 * time.Minute

// Run is a headless run of one notebook.
type Run struct {
	Notebook string        // path of the .ipynb, which is not changed
	Ipynb    string        // output path of the executed notebook; "" for none
	HTML     string        // output path of a self-contained HTML file; "" for none
	Timeout  time.Duration // for each cell; 0 is DefaultCellTimeout
	Env      []string      // added to the kernel's environment, as "NAME=value"

	OnCell func(cell, cells int)              // called before a cell, counted from 1; may be nil
	OnRan  func(cell int, took time.Duration) // called after a code cell; may be nil
}

// Times are the durations of a notebook's code cells, in order.
type Times []cellTime

// cellTime is the duration of a code cell: GoNB's compiling and linking, and the run.
type cellTime struct {
	Cell int // counted from 1, text cells included
	Took time.Duration
}

// Ran adds a cell. Use it as Run.OnRan.
func (t *Times) Ran(cell int, took time.Duration) { *t = append(*t, cellTime{cell, took}) }

// String returns one line.
func (t Times) String() string {
	var text strings.Builder
	var sum time.Duration
	for _, c := range t {
		fmt.Fprintf(&text, "cell %d %.1f s, ", c.Cell, c.Took.Seconds())
		sum += c.Took
	}
	fmt.Fprintf(&text, "%d cells %.1f s", len(t), sum.Seconds())
	return text.String()
}

// CellError is the failure of one cell: an error, a failing shell line, or something written to standard error.
type CellError struct {
	Notebook string // base name
	Cell     int    // counted from 1, text cells included
	Why      string
}

// Error names the notebook, the cell and the reason.
func (e *CellError) Error() string {
	return fmt.Sprintf("%s, cell %d: %s", e.Notebook, e.Cell, strings.TrimSpace(e.Why))
}

// Headless runs the notebook in a new kernel up to the first cell that fails, whose *CellError it returns. It writes
// the outputs up to that cell, too. When ctx ends, the kernel is stopped.
func (k *Kernel) Headless(ctx context.Context, r Run) error {
	if _, err := os.Stat(r.Notebook); err != nil {
		return fmt.Errorf("notebook: %w", err)
	}
	if r.Timeout == 0 {
		r.Timeout = DefaultCellTimeout
	}
	if r.Timeout < 0 {
		return fmt.Errorf("timeout of a cell %v: want more than 0", r.Timeout)
	}
	if same(r.Notebook, r.Ipynb) {
		return fmt.Errorf("the executed notebook would overwrite %s itself: write it elsewhere", r.Notebook)
	}
	job, err := json.Marshal(map[string]any{
		"notebook": r.Notebook, "ipynb": r.Ipynb, "html": r.HTML, "timeout": int(math.Ceil(r.Timeout.Seconds())),
	})
	if err != nil {
		return err
	}
	// Without gopls: nobody asks for completion here.
	env, err := k.environ(false)
	if err != nil {
		return err
	}
	cmd, err := commandIn(ctx, env, "python", "-c", headless)
	if err != nil {
		return err
	}
	cmd.Env = append(cmd.Env, "PYTHONWARNINGS=ignore")
	cmd.Env = append(cmd.Env, r.Env...)
	// In its own process group, so that Ctrl-C reaches it only once, through ctx.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Stdin = bytes.NewReader(job)
	var noise bytes.Buffer
	cmd.Stderr = &noise
	events, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}

	name := filepath.Base(r.Notebook)
	var failed *CellError
	lines := bufio.NewScanner(events)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var event struct {
			Event       string
			Cell, Cells int
			Seconds     float64
			Why         string
		}
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			continue // other output of Python
		}
		switch {
		case event.Event == "cell" && r.OnCell != nil:
			r.OnCell(event.Cell, event.Cells)
		case event.Event == "ran" && r.OnRan != nil:
			r.OnRan(event.Cell, time.Duration(event.Seconds*float64(time.Second)))
		case event.Event == "failed":
			failed = &CellError{name, event.Cell, plain(event.Why)}
		}
	}
	io.Copy(io.Discard, events)
	err = cmd.Wait()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case failed != nil:
		return failed
	case err != nil:
		var said command.Reason
		for line := range strings.Lines(noise.String()) {
			said.Hear(line)
		}
		return fmt.Errorf("%s cannot be run: %s (%w)", name, said.Text(), err)
	}
	return nil
}

// same reports whether both paths lead to one file.
func same(a, b string) bool {
	one, err := os.Stat(a)
	if err != nil {
		return false
	}
	other, err := os.Stat(b)
	return err == nil && os.SameFile(one, other)
}

// ansi matches the colour codes that Go's and GoNB's errors carry.
var ansi = regexp.MustCompile("\x1b\\[[0-9;]*m")

func plain(text string) string { return ansi.ReplaceAllString(text, "") }
