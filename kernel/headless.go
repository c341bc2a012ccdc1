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

// DefaultCellTimeout bounds one cell of a headless run.
const DefaultCellTimeout = 10 * time.Minute

// Run is a headless run of one notebook.
type Run struct {
	Notebook string        // path of the .ipynb, which is not changed
	Ipynb    string        // where the executed notebook goes; "" for nowhere
	HTML     string        // where it goes as one self-contained HTML file; "" for nowhere
	Timeout  time.Duration // for each cell; 0 is DefaultCellTimeout
	Env      []string      // added to the kernel's environment, as "NAME=value"

	OnCell func(cell, cells int)              // cell, counted from 1, of cells begins; may be nil
	OnRan  func(cell int, took time.Duration) // a code cell has run; may be nil
}

// Times are how long the code cells of a notebook took, in their order.
type Times []cellTime

// cellTime is how long a code cell took: GoNB's compiling and linking, and the run.
type cellTime struct {
	Cell int // counted from 1, text cells included
	Took time.Duration
}

// Ran adds a cell. It is meant for Run.OnRan.
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

// Headless runs the notebook in a new kernel, cell by cell, up to the first that fails, whose *CellError it returns.
// The outputs up to there are written all the same. When ctx ends, the kernel is stopped.
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
	// Without gopls: nobody completes code here, and with it each kernel would type-check the whole project.
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
	// In a group of its own, so that Ctrl-C reaches it through ctx alone, once.
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
			continue // not ours: something that Python printed
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
