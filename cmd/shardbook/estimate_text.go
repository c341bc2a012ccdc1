package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/shardbook/shardbook/lib/memest"
)

// estimateText writes an estimate as text, at most 80 columns wide except formulas and errors.
type estimateText struct {
	*estimate
	strings.Builder
	r        *estimateRequest
	unit     byteUnit
	decimals int // of every size, the same for all
}

func (e *estimate) text(unit byteUnit) string {
	w := &estimateText{estimate: e, r: e.request, unit: unit, decimals: 2}
	if x := float64(e.Total) / unit.bytes; x > 0 && x < 1 {
		w.decimals += 1 + int(math.Ceil(-math.Log10(x)))
	}
	w.head()
	w.bars()
	if w.r.detail {
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
	l, name := w.r.setup.Parallelism, ""
	if w.Model != nil && w.Model.Name != "" {
		name = w.Model.Name + ", "
	}
	w.line("%s%s parameters, %s, %s", name, grouped(w.Parameters), w.r.precision, w.r.optimizer)
	if w.Active < w.Parameters {
		m, shared := w.Model, ""
		if m.SharedExperts > 0 {
			shared = fmt.Sprintf(" and %d shared", m.SharedExperts)
		}
		w.line("active: %s parameters a token, %d of %d experts%s", grouped(w.Active), m.ExpertsPerToken, m.Experts,
			shared)
	}
	layout := joined(func(add func(text string, yes bool)) {
		add(fmt.Sprint("data ", l.Data), l.Data > 1)
		add(fmt.Sprint("tensor ", l.Tensor), l.Tensor > 1)
		add(fmt.Sprint("context ", l.Context), l.Context > 1)
		add(fmt.Sprint("expert ", l.Expert), l.Expert > 1)
		add(fmt.Sprint("pipeline ", l.Pipeline), l.Pipeline > 1)
		add(fmt.Sprint("ZeRO stage ", l.ZeRO), l.ZeRO > 0)
	})
	w.line("devices: %s, %s", grouped(int64(w.Devices)), cmp.Or(layout, "the full model"))
	if w.Model != nil {
		w.line("passes: %s", w.passes())
	}
	w.line("\nMemory of a device in %s (%s)\n", w.unit.name, w.unit.means)
}

// joined joins the texts whose condition holds.
func joined(list func(add func(text string, yes bool))) string {
	var texts []string
	list(func(text string, yes bool) {
		if yes {
			texts = append(texts, text)
		}
	})
	return strings.Join(texts, ", ")
}

// passes describes the memory of the passes: saved, recomputed and offloaded activations.
func (w *estimateText) passes() string {
	s := w.r.setup
	tokens, again := fmt.Sprintf("%d × %d tokens", s.Batch, s.Seq), string(s.Recompute)
	if s.Microbatches > 1 {
		tokens = fmt.Sprintf("%d micro-batches of ", s.Microbatches) + tokens
	}
	if !w.r.detail {
		again = cut(again, 30) // a plan may have a text for each block
	}
	return joined(func(add func(text string, yes bool)) {
		add(tokens, true)
		add("recompute "+again, again != "none" && again != "")
		add("activation "+string(w.r.sizes.Activation), w.r.sizes.Activation != "")
		add("flash attention", s.Flash)
		add("dropout", s.Dropout > 0)
		add("sequence parallelism", s.Parallelism.Seq)
		add(string(s.Parallelism.Schedule), s.Parallelism.Pipeline > 1)
		add("optimizer offloaded", s.OffloadOptimizer)
		add("activations offloaded", s.OffloadActivations)
		add(w.r.engine, w.r.engine != "planned")
	})
}

// bars draws a bar for each kind, in proportion to the largest.
func (w *estimateText) bars() {
	most := int64(0)
	for _, kind := range memest.Kinds() {
		most = max(most, w.largest.Of(kind))
	}
	for _, kind := range memest.Kinds() {
		if n := w.largest.Of(kind); n > 0 {
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

// shown is the number of lines of a kind without --detail.
const shown = 4

// largestLines prints the largest lines of each kind.
func (w *estimateText) largestLines() {
	w.line("%-14s %-44s %7s %11s", "", "", "times", w.unit.name)
	for _, kind := range memest.Kinds() {
		other := func(it estimateItem) bool { return it.Kind != kind }
		items := slices.DeleteFunc(slices.Clone(w.Items), other)
		slices.SortStableFunc(items, func(a, b estimateItem) int { return cmp.Compare(b.Bytes, a.Bytes) })
		title, rest, more := string(kind), int64(0), 0
		for i, it := range items {
			if i >= shown && len(items) > shown+1 {
				rest, more = rest+it.Bytes, more+1
				continue
			}
			w.line("%-14s %-44s %7d %11s", title, cut(it.Name, 44), it.Count, w.size(it.Bytes))
			title = ""
		}
		if more > 0 {
			w.line("%-14s %-44s %7s %11s", "", fmt.Sprintf("%d more lines (--detail)", more), "", w.size(rest))
		}
	}
}

// cut shortens a text to a number of characters.
func cut(text string, width int) string {
	if r := []rune(text); len(r) > width {
		return string(r[:width-1]) + "…"
	}
	return text
}

// everyLine prints all lines with their formulas and values.
func (w *estimateText) everyLine() {
	for _, it := range slices.Concat(w.Items, w.HostItems) {
		name := it.Name
		if it.Host {
			name += " (host memory)"
		}
		w.line("%-14s %-44s %7d %11s", it.Kind, cut(name, 44), it.Count, w.size(it.Bytes))
		for _, more := range []string{it.Formula, it.Values, it.Source} {
			if more != "" {
				w.line("    %s", more)
			}
		}
	}
}

func (w *estimateText) totals() {
	w.line("%-67s %11s", "total of a device", w.size(w.Total))
	if w.Host > 0 {
		w.line("%-67s %11s", "host memory for each device", w.size(w.Host))
	}
	if w.Model == nil {
		w.line("\nThese are states alone; activations and buffers follow from a model's sizes.")
	}
	if w.WorstMoment != "" {
		w.line("\nMost is needed at %s.", w.WorstMoment)
	}
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

// memory prints on which devices the run fits.
func (w *estimateText) memory() {
	if len(w.Fits) == 1 {
		f := w.Fits[0]
		name := cmp.Or(f.Device, "the memory")
		if f.Fits {
			w.line("\nIt fits: %s is %.0f%% of %s's %s %s.", w.size(w.Total), 100*float64(w.Total)/float64(f.Bytes),
				name, w.size(f.Bytes), w.unit.name)
		} else {
			w.line("\nIt does not fit: %s is %s more than %s's %s %s.", w.size(w.Total), w.size(w.Total-f.Bytes), name,
				w.size(f.Bytes), w.unit.name)
		}
		if w.RecomputeNote != "" {
			w.line("%s", w.RecomputeNote)
		}
		return
	}
	w.line("\n%-20s %11s %6s", "accelerator", w.unit.name, "used")
	for _, f := range w.Fits {
		fits := ""
		if !f.Fits {
			fits = "  does not fit"
		}
		w.line("%-20s %11s %5.0f%%%s", f.Device, w.size(f.Bytes), 100*float64(w.Total)/float64(f.Bytes), fits)
	}
}

// advice prints changes that save memory.
func (w *estimateText) advice() {
	if !w.advised {
		return
	}
	if w.Model == nil {
		w.line("For advice on what to change give the model: --model, --config or --layers.")
		return
	}
	if len(w.Advice) == 0 {
		w.line("\nNo single change that is known saves memory.")
		return
	}
	w.changes("what to change", w.Advice)
	if n := len(w.Combined); n > 0 {
		w.changes("together, one after another", w.Combined)
		if *w.Combined[n-1].Fits {
			w.line("Together they fit.")
		} else {
			w.line("Together they do not fit either, and no other change that is known saves more.")
		}
	}
}

func (w *estimateText) changes(title string, list []change) {
	w.line("\n%-31s %9s %4s  %s", title, w.unit.name, "fits", "what it costs")
	for _, c := range list {
		fits := ""
		if c.Fits != nil {
			fits = map[bool]string{true: "yes", false: "no"}[*c.Fits]
		}
		w.line("%-31s %9s %4s  %s", c.What, w.size(c.Bytes), fits, c.Cost)
	}
}

// training prints the FLOPs of the run and its time.
func (w *estimateText) training() {
	c := w.Compute
	how := "in matmuls"
	if w.Model == nil {
		how = "by the rule of 6 for each parameter"
	}
	w.line("\nTraining takes %.3g FLOPs a token %s.", c.FLOPsPerToken, how)
	if c.Tokens > 0 {
		w.line("For %s tokens that is %.3g FLOPs.", grouped(c.Tokens), c.FLOPs)
	}
	if c.Seconds > 0 {
		w.line("On %s × %s at %.0f%% of their peak that is %v.", grouped(int64(w.Devices)), w.Fits[0].Device,
			100*c.Utilization, c.Seconds)
	}
	if c.Note != "" {
		w.line("%s", c.Note)
	}
}

// conventions prints the results of published formulas beside ours.
func (w *estimateText) conventions() {
	if w.Conventions == nil {
		return
	}
	w.line("\n%-36s %11s %11s %11s", "by published conventions, in "+w.unit.name, "states", "activations", "other")
	row := func(name string, items []memest.Item) {
		list := memest.Stage{Items: items}
		states := list.Of(memest.Parameters) + list.Of(memest.Master) + list.Of(memest.Gradients) +
			list.Of(memest.Optimizer)
		activations := list.Of(memest.Activations) + list.Of(memest.Logits)
		column := func(n int64) string {
			if n == 0 {
				return "–"
			}
			return w.size(n)
		}
		w.line("%-36s %11s %11s %11s", name, column(states), column(activations),
			column(list.Bytes()-states-activations))
	}
	row("shardbook", w.largest.Items)
	for _, c := range w.Conventions {
		if c.Problem != "" {
			w.line("%s does not apply: %s", c.Name, c.Problem)
		} else {
			row(c.Name, c.Items)
		}
	}
}

// byteUnit is the unit of all printed sizes.
type byteUnit struct {
	name  string
	bytes float64
	means string
}

func parseUnits(name string) (byteUnit, error) {
	switch strings.ToLower(name) {
	case "gb":
		return byteUnit{"GB", 1e9, "10⁹ bytes"}, nil
	case "gib":
		return byteUnit{"GiB", 1 << 30, "2³⁰ bytes"}, nil
	}
	return byteUnit{}, fmt.Errorf("--units=%s: want GB or GiB", name)
}

// grouped formats a number with its digits in groups of three.
func grouped(n int64) string {
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + " " + text[i:]
	}
	return text
}
