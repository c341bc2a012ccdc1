package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/shardbook/shardbook/internal/job"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/train"
)

// predict prints, before the run starts, what it is and what it will need: its model, layout and schedule, the memory
// of a device and what a step sends. What cannot be predicted is left out, with the reason.
func (t *training) predict(r train.Recipe, l parallel.Layout) error {
	if t.options.json || !t.mpi.First() {
		return nil
	}
	out, j := &strings.Builder{}, t.job
	m := j.Model
	fmt.Fprintf(out, "model         %d blocks of width %d with %d heads: %s parameters\n", m.Layers, m.Width, m.Heads,
		grouped(int64(m.Params().Size())))
	fmt.Fprintf(out, "layout        %s\n", layoutText(j.Parallel, l))
	if l.Plan != nil {
		timeline, err := l.Plan.Simulate(step.Equal())
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "schedule      %s, %d micro-batches, bubble %.0f%%\n", l.Plan.Name, l.Plan.Micro,
			100*timeline.Bubble)
	}
	memory, traffic := predicted(j, r, l)
	fmt.Fprintf(out, "memory        of a device, predicted: %s\n", memory)
	fmt.Fprintf(out, "traffic       in a step, predicted, by axis: %s\n\n", traffic)
	_, err := fmt.Fprint(t.out, out)
	return err
}

// layoutText is a layout in a line.
func layoutText(p job.Parallel, l parallel.Layout) string {
	if l.Plan != nil {
		l.Pipe, l.Microbatches = len(l.Plan.Ranks), 0 // of which the schedule's line says more
	}
	ranks := l.Ranks()
	if flag, _ := p.ByProcess(); flag == "data" && !p.OneProgram() { // and each rank is one of the --data devices
		l.Data, l.Replicas = l.Replicas, 1
	}
	if l.Sync = ""; l.Microbatches == 1 { // --sync is printed below
		l.Microbatches = 0
	}
	n, text := l.Devices(), "1 device"
	if n > 1 {
		text = fmt.Sprintf("%v: %d devices", l, n)
	}
	switch {
	case n > 1 && p.OneProgram():
		text += ", one program"
	case n > 1 && ranks == 1:
		text += ", one rank"
	case n > 1:
		text += fmt.Sprintf(", %d ranks", ranks)
	}
	if p.Sync != "" {
		text += ", --sync " + string(p.Sync)
	}
	return text
}

// predicted is the memory of the device that needs most, and what a rank sends in a step, in words.
func predicted(j *job.Job, r train.Recipe, l parallel.Layout) (memory, traffic string) {
	if j.Parallel.Sync.Served() {
		return "unknown with parameter servers", "unknown with parameter servers"
	}
	setup := j.Setup(r)
	if l.Devices() == 1 {
		setup.Method = memest.Compiled
	}
	ledger, err := l.Estimate(setup, j.Batch)
	if err != nil {
		return fmt.Sprintf("unknown (%v)", job.InFlags(err)), "unknown"
	}
	largest := ledger.Largest()
	memory = bytesText(largest.Bytes())
	var kinds []string
	for _, kind := range memest.Kinds() {
		if n := largest.Of(kind); n > largest.Bytes()/100 {
			kinds = append(kinds, string(kind)+" "+bytesText(n))
		}
	}
	memory += " (" + strings.Join(kinds, ", ") + ")"
	if j.Parallel.Sync == job.Auto {
		return memory, "left to the compiler"
	}
	axes, err := l.Traffic(setup, j.Batch)
	if err != nil {
		return memory, fmt.Sprintf("unknown (%v)", job.InFlags(err))
	}
	return memory, axesText(axes)
}

// axesText is how many bytes are sent along each axis.
func axesText(axes map[string]int64) string {
	var parts []string
	for _, axis := range slices.Sorted(maps.Keys(axes)) {
		if axes[axis] > 0 {
			parts = append(parts, axis+" "+bytesText(axes[axis]))
		}
	}
	if parts == nil {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}
