package main

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/shardbook/shardbook/lib/memest"
)

// estimateText writes an estimate as text, at most 80 columns wide except formulas and errors.
type estimateText struct {
	*estimate
	strings.Builder
	unit     byteUnit
	detail   bool
	decimals int // of every size, the same for all
}

func (e *estimate) text(unit byteUnit, detail bool) string {
	w := &estimateText{estimate: e, unit: unit, detail: detail, decimals: 2}
	if x := float64(e.Total) / unit.bytes; x > 0 && x < 1 {
		w.decimals += 1 + int(math.Ceil(-math.Log10(x)))
	}
	w.head()
	w.bars()
	if detail {
		w.everyLine()
	} else {
		w.largestLines()
	}
	w.totals()
	w.stages()
	w.memory()
	w.advice()
	w.training()
	w.conventions()
	return w.String()
}

func (w *estimateText) line(format string, args ...any) {
	w.WriteString(strings.TrimRight(fmt.Sprintf(format, args...), " ") + "\n")
}

// size writes bytes in the unit, without its name.
func (w *estimateText) size(n int64) string {
	return fmt.Sprintf("%.*f", w.decimals, float64(n)/w.unit.bytes)
}

func (w *estimateText) head() {
	s := w.Settings
	name := ""
	if w.Model != nil && w.Model.Name != "" {
		name = w.Model.Name + ", "
	}
	w.line("%s%s parameters, %s, %s", name, grouped(w.Parameters), s.Precision, s.Optimizer)
	var layout []string
	for _, l := range []struct {
		name string
		n    int
	}{{"data", s.Data}, {"tensor", s.Tensor}, {"context", s.Context}, {"pipeline", s.Pipe}, {"ZeRO stage", s.Zero}} {
		if l.n > 1 || l.name == "ZeRO stage" && l.n > 0 {
			layout = append(layout, fmt.Sprintf("%s %d", l.name, l.n))
		}
	}
	if layout == nil {
		layout = []string{"the full model"}
	}
	w.line("devices: %s, %s", grouped(int64(w.Devices)), strings.Join(layout, ", "))
	if w.Model != nil {
		w.line("passes: %s", strings.Join(w.passes(), ", "))
	}
	w.line("")
	w.line("Memory of a device in %s (%s)", w.unit.name, w.unit.means)
	w.line("")
}

// passes describes the memory of the passes: saved, recomputed and offloaded activations.
func (w *estimateText) passes() []string {
	s := w.Settings
	found := []string{fmt.Sprintf("%d × %d tokens", s.Batch, cmp.Or(s.Seq, w.Model.Context))}
	if s.Microbatches > 1 {
		found[0] = fmt.Sprintf("%d micro-batches of ", s.Microbatches) + found[0]
	}
	if again := string(s.Recompute); again != "none" && again != "" {
		if !w.detail {
			again = cut(again, 30) // a plan may have a text for each block
		}
		found = append(found, "recompute "+again)
	}
	for _, option := range []struct {
		name string
		on   bool
	}{{"activation " + string(s.Activation), s.Activation != ""}, {"flash attention", s.Flash}, {"dropout",
		s.Dropout > 0},
		{"sequence parallelism", s.SeqParallel}, {s.Schedule, s.Pipe > 1},
		{"optimizer offloaded", s.OffloadOptimizer}, {"activations offloaded", s.OffloadActivations},
		{s.Engine, s.Engine != "planned"}} {
		if option.on {
			found = append(found, option.name)
		}
	}
	return found
}

// of is the sum of the lines of a kind.
func (w *estimateText) of(kind memest.Kind) (sum int64) {
	for _, it := range w.Items {
		if it.Kind == kind {
			sum += it.Bytes
		}
	}
	return sum
}

// bars draws a bar for each kind, in proportion to the largest.
func (w *estimateText) bars() {
	most := int64(0)
	for _, kind := range memest.Kinds() {
		most = max(most, w.of(kind))
	}
	for _, kind := range memest.Kinds() {
		if n := w.of(kind); n > 0 {
			w.line("%-14s %s %9s %4.0f%%", kind, bar(float64(n)/float64(most), 48), w.size(n),
				100*float64(n)/float64(w.Total))
		}
	}
	w.line("")
}

// bar draws a share of a width, in eighths of a column.
func bar(share float64, width int) string {
	eighths := max(1, int(math.Round(share*float64(8*width)))) // at least a visible bar
	text := strings.Repeat("█", eighths/8)
	if rest := eighths % 8; rest > 0 {
		text += string([]rune("▏▎▍▌▋▊▉")[rest-1])
	}
	return text + strings.Repeat(" ", width-utf8.RuneCountInString(text))
}

// stages prints a bar for each pipeline stage.
func (w *estimateText) stages() {
	if len(w.Stages) == 1 {
		return
	}
	const most = 16
	w.line("\nstage  blocks")
	for _, s := range w.Stages[:min(most, len(w.Stages))] {
		w.line("%5d  %-11s %s %11s", s.Index, fmt.Sprintf("%d to %d", s.First, s.First+s.Blocks-1),
			bar(float64(s.Bytes)/float64(w.Total), 48), w.size(s.Bytes))
	}
	if n := len(w.Stages) - most; n > 0 {
		w.line("       and %d more, with no more than %s", n, w.size(w.Total))
	}
}
