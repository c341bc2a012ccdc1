package main

import (
	"cmp"
	"slices"

	"github.com/shardbook/shardbook/lib/memest"
)

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
		var states, activations, other int64
		for _, it := range items {
			switch {
			case it.Host:
			case slices.Contains([]memest.Kind{memest.Parameters, memest.Master, memest.Gradients, memest.Optimizer},
				it.Kind):
				states += it.Bytes
			case it.Kind == memest.Activations || it.Kind == memest.Logits:
				activations += it.Bytes
			default:
				other += it.Bytes
			}
		}
		column := func(n int64) string {
			if n == 0 {
				return "–"
			}
			return w.size(n)
		}
		w.line("%-36s %11s %11s %11s", name, column(states), column(activations), column(other))
	}
	var ours []memest.Item
	for _, it := range w.Items {
		ours = append(ours, it.Item)
	}
	row("shardbook", ours)
	for _, c := range w.Conventions {
		if c.Problem != "" {
			w.line("%s does not apply: %s", c.Name, c.Problem)
		} else {
			row(c.Name, c.Items)
		}
	}
}
