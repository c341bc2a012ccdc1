package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/guptarohit/asciigraph"

	"github.com/shardbook/shardbook/internal/job"
	"github.com/shardbook/shardbook/internal/tensorboard"
	"github.com/shardbook/shardbook/internal/userfile"
	"github.com/shardbook/shardbook/lib/chart"
	"github.com/shardbook/shardbook/lib/cost"
	"github.com/shardbook/shardbook/lib/expert"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/train"
)

// stepRecord is the line of a step in the log.
type stepRecord struct {
	Step       int     `json:"step"` // from 1
	Loss       float64 `json:"loss"` // before the update, in nats
	GradNorm   float64 `json:"grad_norm,omitempty"`
	Scale      float64 `json:"loss_scale"`
	Skipped    bool    `json:"skipped,omitempty"`
	Staleness  float64 `json:"staleness,omitempty"` // mean delay of gradients, in updates
	Seconds    float64 `json:"seconds"`
	TokensPerS float64 `json:"tokens_per_s"`
	Bytes      int64   `json:"bytes"`             // on a device while the step runs
	Balance    float64 `json:"balance,omitempty"` // the largest load of an expert / the mean, in the worst block
	Dropped    float64 `json:"dropped,omitempty"` // the share of tokens' choices that experts with a capacity drop
}

// text is the record of a model with these experts, or none, in less than a line.
func (r stepRecord) text(e expert.Config) string {
	switch {
	case e.Capacity > 0:
		return fmt.Sprintf("loss %.3f, load %.2f, %.0f%% dropped", r.Loss, r.Balance, 100*r.Dropped)
	case e.Experts > 0:
		return fmt.Sprintf("loss %.3f, load %.2f, %s tok/s", r.Loss, r.Balance, short(r.TokensPerS))
	}
	return fmt.Sprintf("loss %.3f, %s tok/s, %s", r.Loss, short(r.TokensPerS), bytesText(r.Bytes))
}

// openLog opens a log, a file with a line of JSON for each step, to continue after a step: later lines, of steps whose
// checkpoint was never written, are cut off.
func openLog(path string, after int) (*os.File, error) {
	if path == "" {
		return nil, nil
	}
	file, err := userfile.Append(path)
	if err != nil {
		return nil, fmt.Errorf("--log: %w", err)
	}
	if info, err := file.Stat(); err == nil && info.Mode().IsRegular() { // a pipe has no earlier lines
		if err := cutLog(file, after); err != nil {
			file.Close()
			return nil, fmt.Errorf("--log: %s: %w", path, err)
		}
	}
	return file, nil
}

// cutLog cuts a log off after the line of a step. A file that is no log is an error, and left as it is.
func cutLog(file *os.File, after int) error {
	const begin = `{"step":`
	lines, end := bufio.NewReaderSize(file, 64<<10), int64(0)
	for {
		line, err := lines.ReadSlice('\n')
		if err != nil && err != io.EOF && err != bufio.ErrBufferFull { // ErrBufferFull: too long a line for a log
			return err
		}
		var r stepRecord
		// cut off as it was written
		partial := err == io.EOF && strings.HasPrefix(string(line), begin[:min(len(begin), len(line))])
		switch {
		case after == 0 && len(line) > 0:
			return errors.New("the file is not empty: choose another one")
		case partial || len(line) == 0:
			return file.Truncate(end)
		case json.Unmarshal(line, &r) != nil || r.Step < 1:
			return fmt.Errorf("it is not the log of a run, at the line %.40q: choose another file", line)
		case r.Step > after:
			return file.Truncate(end)
		}
		end += int64(len(line))
	}
}

// writeLog writes a line, if there is a log.
func writeLog(log *os.File, r stepRecord) error {
	if log == nil {
		return nil
	}
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = log.Write(append(line, '\n'))
	return inFlag("log", err)
}

// trainResult is what --json prints.
type trainResult struct {
	Losses         []float64        `json:"losses"` // one a step of this process, before the update, in nats
	Params         int              `json:"params"`
	FirstStep      int              `json:"first_step"` // from 1
	BytesPerDevice map[string]int64 `json:"bytes_per_device"`
	TokensPerS     float64          `json:"tokens_per_s"` // median
	Skipped        int              `json:"skipped_steps"`
	Staleness      float64          `json:"staleness,omitempty"`    // mean
	Sent           *traffic         `json:"sent,omitempty"`         // by a device in a step, in bytes
	Collectives    []collective     `json:"collectives,omitempty"`  // of a device in a step
	SentByAxis     map[string]int64 `json:"sent_by_axis,omitempty"` // of a layout, in the last step, in bytes
	Experts        []expertLoad     `json:"experts,omitempty"`      // in the last step
	Balance        float64          `json:"balance,omitempty"`      // of the last step, as in the log
	Dropped        float64          `json:"dropped,omitempty"`
	Pipeline       *pipeResult      `json:"pipeline,omitempty"`
	Trace          *traceResult     `json:"trace,omitempty"`
	Checkpoint     string           `json:"checkpoint,omitempty"`
	Text           string           `json:"text,omitempty"`
}

func (t *training) result(text string) (trainResult, error) {
	r := trainResult{Losses: []float64{}, Params: int(cost.FromGPT(t.job.Model).Params().Total()),
		FirstStep: t.began + 1, Experts: t.loads, Sent: t.sent, Trace: t.traced,
		Checkpoint: t.options.checkpoint, Text: text}
	var speeds []float64
	for _, record := range t.records {
		r.Losses = append(r.Losses, record.Loss)
		speeds = append(speeds, record.TokensPerS)
		r.Staleness += record.Staleness / float64(len(t.records))
		if record.Skipped {
			r.Skipped++
		}
	}
	if n := len(speeds); n > 0 {
		r.Balance, r.Dropped = t.records[n-1].Balance, t.records[n-1].Dropped
		slices.Sort(speeds)
		r.TokensPerS = speeds[len(speeds)/2]
	}
	var err error
	if r.Collectives, err = t.collectives(); err == nil {
		r.SentByAxis, err = t.sentByAxis()
	}
	if err == nil {
		r.Pipeline, err = t.pipelineResult()
	}
	if err == nil {
		r.BytesPerDevice, err = t.run.Memory()
	}
	return r, err
}

// report prints the result: the loss as a chart, then a table, then the text; or all of it as JSON.
func (t *training) report(text string) error {
	r, err := t.result(text)
	if err != nil {
		return err
	}
	if t.options.json {
		return json.NewEncoder(t.out).Encode(r)
	}
	_, err = io.WriteString(t.out, t.page(r, text))
	return err
}

// page is the result as text.
func (t *training) page(r trainResult, text string) string {
	out := &strings.Builder{}
	row := func(title, format string, args ...any) {
		fmt.Fprintf(out, "%-13s %s\n", title, fmt.Sprintf(format, args...))
	}
	n, last := len(r.Losses), t.run.Steps()
	if n > 1 {
		caption := fmt.Sprintf("loss in nats, steps %d to %d", r.FirstStep, last)
		fmt.Fprintf(out, "%s\n\n", asciigraph.Plot(r.Losses, asciigraph.Height(10), asciigraph.Width(min(64, n)),
			asciigraph.Precision(2), asciigraph.Caption(caption)))
	}
	if n > 0 {
		row("loss", "%.5f at step %d, %.5f at step %d", r.Losses[0], r.FirstStep, r.Losses[n-1], last)
		row("tokens/s", "%s", short(r.TokensPerS))
	} else {
		fmt.Fprintf(out, "nothing to do: step %d is done\n", last)
	}
	row("parameters", "%d", r.Params)
	each := ""
	if t.devices > 1 {
		each = "of each device: "
	}
	var memory []string
	for _, kind := range slices.Sorted(maps.Keys(r.BytesPerDevice)) {
		memory = append(memory, kind+" "+bytesText(r.BytesPerDevice[kind]))
	}
	row("memory", "%s%s", each, strings.Join(memory, ", "))
	if r.Staleness > 0 {
		row("staleness", "%.2f updates on average", r.Staleness)
	}
	if s := r.Sent; s != nil {
		between := ""
		if s.Average > 0 {
			between = fmt.Sprintf(", %s between copies of shards", bytesText(s.Average))
		}
		row("sent", "by a device in a step: %s of parameters, %s of gradients to shards%s", bytesText(s.Gather),
			bytesText(s.Scatter), between)
	}
	if len(r.Collectives) > 0 {
		row("collectives", "of a device in a step: %s", collectivesText(r.Collectives))
	}
	if len(r.SentByAxis) > 0 {
		row("sent", "in the last step, by axis: %s", axesText(r.SentByAxis))
	}
	if r.Experts != nil {
		row("experts", "tokens for each in the last step, of a block in a line; at most %.2f times the mean", r.Balance)
		for _, l := range r.Experts {
			row(l.Block, "%s", loadText(l))
		}
	}
	r.Pipeline.print(out)
	if tr := r.Trace; tr != nil {
		sent := ""
		if tr.Bytes > 0 {
			sent = bytesText(tr.Bytes) + " by a rank in a step, "
		}
		if r.Pipeline == nil && tr.ranks > 0 {
			row("communicated", "%s%.0f%% of the time while it computed", sent, 100*tr.Overlap)
		}
		devices := ""
		if tr.Kernels > 0 {
			devices = fmt.Sprintf(" with %d kernels and copies on the devices", tr.Kernels)
		}
		row("trace", "%s, of %d steps%s: open it in https://ui.perfetto.dev", tr.File, tr.Steps, devices)
		if tr.Problem != "" {
			row("profiler", "%s", tr.Problem)
		}
	}
	if r.Skipped > 0 {
		row("skipped", "%d steps, of gradients that were not finite", r.Skipped)
	}
	if r.Checkpoint != "" {
		row("checkpoint", "%s", r.Checkpoint)
	}
	if text != "" {
		fmt.Fprintf(out, "\n%s\n", strings.ToValidUTF8(text, "\uFFFD"))
	}
	return out.String()
}

// short writes a number with about three digits.
func short(x float64) string {
	switch {
	case x >= 1e4:
		return fmt.Sprintf("%.0f k", x/1e3)
	case x >= 100:
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.3g", x)
}

// bytesText writes a number of bytes in powers of 1024.
func bytesText(n int64) string {
	x, unit := float64(n), "B"
	for _, next := range []string{"KiB", "MiB", "GiB"} {
		if x < 1024 {
			break
		}
		x, unit = x/1024, next
	}
	return fmt.Sprintf("%.4g %s", x, unit)
}

// openCurves opens the file of --tensorboard, if it is set.
func (t *training) openCurves() (err error) {
	if t.options.tensorboard == "" {
		return nil
	}
	if t.rate, err = t.job.Rate(); err != nil {
		return err
	}
	t.events, err = tensorboard.Create(t.options.tensorboard, t.began+1)
	return inFlag("tensorboard", err)
}

// writeEvent writes a step for TensorBoard.
func (t *training) writeEvent(r stepRecord) error {
	if t.events == nil {
		return nil
	}
	scalars := []tensorboard.Scalar{
		{Tag: "train/loss", Value: r.Loss},
		{Tag: "train/learning_rate", Value: t.job.LR * t.rate.At(r.Step)},
		{Tag: "performance/tokens_per_s", Value: r.TokensPerS},
		{Tag: "performance/device_memory_bytes", Value: float64(r.Bytes)},
	}
	if r.GradNorm > 0 { // else it is not computed
		scalars = append(scalars, tensorboard.Scalar{Tag: "train/grad_norm", Value: r.GradNorm})
	}
	if e := t.job.Model.Experts; e.Experts > 0 {
		scalars = append(scalars, tensorboard.Scalar{Tag: "experts/balance", Value: r.Balance})
		if e.Capacity > 0 {
			scalars = append(scalars, tensorboard.Scalar{Tag: "experts/dropped", Value: r.Dropped})
		}
	}
	return inFlag("tensorboard", t.events.Write(r.Step, scalars...))
}

// drawLoss writes the chart of the loss, if --chart is set.
func (t *training) drawLoss() error {
	path := t.options.chart
	if path == "" || len(t.records) == 0 {
		return nil
	}
	var loss chart.Series
	for _, r := range t.records {
		loss.X, loss.Y = append(loss.X, float64(r.Step)), append(loss.Y, r.Loss)
	}
	c := chart.Line("training loss", "step", "loss (nats)", loss)
	write, same := func(w io.Writer) error {
		return writePage(w, "training loss", append([]*chart.Chart{c}, t.expertCharts()...)...)
	}, isPage
	if filepath.Ext(path) == ".svg" {
		same = func(r io.Reader) bool {
			start := make([]byte, 4)
			_, err := io.ReadFull(r, start)
			return err == nil && string(start) == "<svg"
		}
		write = func(w io.Writer) error {
			svg, err := c.SVG()
			if err == nil {
				_, err = io.Copy(w, strings.NewReader(svg))
			}
			return err
		}
	}
	return inFlag("chart", replaceFile(path, same, write))
}

// predict prints, before the run starts, what it is and what it will need: its model, layout and schedule, the memory
// of a device and what a step sends. What cannot be predicted is left out, with the reason.
func (t *training) predict(r train.Recipe, l parallel.Layout) error {
	if t.options.json || !t.mpi.First() {
		return nil
	}
	out, j := &strings.Builder{}, t.job
	m := j.Model
	n, active := cost.FromGPT(m).Params(), ""
	if m.Experts.Experts > 0 {
		active = fmt.Sprintf(", of which a token passes through %s, with %d of %d experts", grouped(n.Active()),
			m.Experts.PerToken, m.Experts.Experts)
	}
	fmt.Fprintf(out, "model         %d blocks of width %d with %d heads: %s parameters%s\n", m.Layers, m.Width, m.Heads,
		grouped(n.Total()), active)
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
	if m := setup.Model; l.Devices() == 1 && m.Experts == 0 && m.QKNorm == "" { // which were not measured
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
