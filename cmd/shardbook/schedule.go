package main

import (
	"fmt"
	"io"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shardbook/shardbook/internal/flags"
	"github.com/shardbook/shardbook/internal/job"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/step"
)

// scheduleOptions are the flags of the command.
type scheduleOptions struct {
	kind                         string
	stages, microbatches, chunks int
	cost                         string
	memory                       float64
	json, printConfig            bool
	config                       string
	csv, read, trace, chart      string
}

func scheduleCommand() *cobra.Command {
	o := scheduleOptions{kind: string(pipeline.Kind1F1B), stages: 4, microbatches: 8}
	cmd := &cobra.Command{
		Use:   "schedule",
		Short: "Draw and time a pipeline schedule, with no device",
		Long: `Draw a schedule of pipeline parallelism, and print its bubble, step time and memory, with no device.
Kinds are:
` + wrapped(scheduleKinds()) + `
search looks for the fastest schedule for the --cost that keeps to --memory.

In the picture a number is a micro-batch, alone for its forward pass and with a letter for others.

--stages is the number of devices, each of which has an equal part of the model. Interleaved kinds cut that part
into --chunks (zb-v has two), each of which takes as much less time and memory, so that kinds can be compared.

--cost says how long a part's passes take for a micro-batch, in any unit: F the forward pass, I and W the
backward pass for the inputs and for the weights, B both together (default I+W), U the update, link a message
between devices. It also says how much memory a micro-batch takes: A saved activations, of which the share K is
left between I and W. A value for each part is written F=1:2:1:1.`,
		Example: "  shardbook schedule --kind 1f1b --stages 4 --microbatches 8\n" +
			"  shardbook schedule --kind interleaved --stages 4 --microbatches 8 --chunks 2 --cost F=1,B=2,link=0.1 " +
			"--json\n" +
			"  shardbook schedule --kind search --stages 4 --microbatches 8 --cost F=1:2:1:1,I=1:2:1:1,W=1 --memory " +
			"3\n  shardbook schedule --kind zb-h1 --csv schedule.csv --trace schedule.json --chart schedule.html\n" +
			"  shardbook schedule --read schedule.csv",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			signals.allow(0) // it only computes
			if o.printConfig {
				return flags.Print(cmd.OutOrStdout(), cmd.Flags())
			}
			if err := o.validate(cmd); err != nil {
				return flags.Located(cmd.Flags(), err)
			}
			costs, err := parseCosts(o.cost)
			if err != nil {
				return err
			}
			s, err := o.build(cmd.InOrStdin(), costs)
			if err != nil {
				return err
			}
			t, err := s.SimulateShares(costs)
			if err != nil {
				return err
			}
			if err := o.write(t); err != nil {
				return err
			}
			r, err := newScheduleResult(t)
			switch {
			case err != nil:
				return err
			case o.csv == "-":
				return s.WriteCSV(cmd.OutOrStdout())
			case o.json:
				return writeJSON(cmd.OutOrStdout(), r)
			}
			_, err = io.WriteString(cmd.OutOrStdout(), r.text(t, o.cost == ""))
			return err
		},
	}
	f := cmd.Flags()
	add := flags.Adder(f)
	add(&o.kind, "kind", "schedule: see above")
	add(&o.stages, "stages", "devices of the pipeline")
	add(&o.microbatches, "microbatches", "micro-batches per step")
	add(&o.chunks, "chunks", "stages per device, of interleaved kinds (default 2; search: 1)")
	add(&o.cost, "cost", "how long passes take (default F=1,I=1,W=1,B=2,U=0,link=0,A=1,K=1)")
	add(&o.memory, "memory", "most micro-batches that a device may save, for --kind search (default no limit)")
	add(&o.read, "read", "read the schedule from a file of CSV or of this project's text, or from -")
	flags.Choices(f, "kind", scheduleKinds()...)
	flags.File(f, "read")
	flags.Group(f, "pipeline")
	add(&o.config, "config", "read settings from a file of YAML, TOML or JSON, by the names of flags")
	add(&o.printConfig, "print-config", "print the settings as such a file, in YAML, and do nothing more")
	flags.Settings(f, "config")
	flags.NotInFiles(f, "print-config")
	flags.Group(f, job.GroupRun)
	add(&o.json, "json", "print one JSON object, and nothing else")
	add(&o.csv, "csv", "write the schedule as CSV, as PyTorch does; - prints it, and nothing else")
	add(&o.trace, "trace", "write the simulated step as a Chrome trace, a unit of time as a millisecond")
	add(&o.chart, "chart", "write charts of time and memory as a page of HTML")
	flags.File(f, "csv", "csv")
	flags.File(f, "trace", "json")
	flags.File(f, "chart", "html")
	flags.Group(f, job.GroupOutput)
	flags.Complete(cmd)
	return cmd
}

// kindSearch is the kind that searches for the best schedule.
const kindSearch = string(pipeline.KindSearch)

func scheduleKinds() (names []string) {
	for _, k := range pipeline.Kinds() {
		names = append(names, string(k))
	}
	return append(names, kindSearch)
}

// validate returns an error for flags that exclude each other.
func (o *scheduleOptions) validate(cmd *cobra.Command) error {
	changed := cmd.Flags().Changed
	switch {
	case changed("devices"):
		return fmt.Errorf("--devices is for commands that open XLA devices: give the pipeline's as --stages")
	case !slices.Contains(scheduleKinds(), o.kind):
		return fmt.Errorf("--kind=%.40s: want one of %s", o.kind, strings.Join(scheduleKinds(), ", "))
	case changed("memory") && o.kind != kindSearch:
		return fmt.Errorf("--memory is only for --kind %s, and --kind is %s: leave it out", kindSearch, o.kind)
	case !(o.memory >= 0):
		return fmt.Errorf("--memory=%g: give the micro-batches that a device may save, or 0 for no limit", o.memory)
	case o.csv == "-" && o.json:
		return fmt.Errorf("--csv - and --json both write to standard output: write the CSV to a file")
	}
	for _, flag := range []string{"kind", "stages", "microbatches", "chunks"} {
		if o.read != "" && changed(flag) {
			return fmt.Errorf("--%s and --read: both set the schedule: leave one of them out", flag)
		}
	}
	return nil
}

// build computes, searches or reads the schedule.
func (o *scheduleOptions) build(in io.Reader, costs step.Costs) (*step.Plan, error) {
	if o.read != "" {
		s, err := job.ReadSchedule(o.read, in)
		if err != nil {
			return s, fmt.Errorf("--read: %w", err)
		}
		return s, checkCosts(o.cost, costs, len(s.Blocks)/s.Chunks())
	}
	if err := checkCosts(o.cost, costs, o.stages); err != nil {
		return nil, err
	}
	if o.kind == kindSearch {
		chunks := max(o.chunks, 1)
		if o.chunks < 0 {
			return nil, fmt.Errorf("--chunks=%d: want at least 1", o.chunks)
		}
		s, err := pipeline.Search(o.stages, o.microbatches, chunks, costs.Spread(chunks), o.memory*float64(chunks))
		if err != nil && chunks > 1 {
			err = fmt.Errorf("%w (in chunks, of which a device has %d)", err, chunks)
		}
		return s, err
	}
	return pipeline.NewSchedule(pipeline.Kind(o.kind), o.stages, o.microbatches, o.chunks)
}

// scheduleResult is what --json prints. Lists have one value per device. Times are in the unit of the costs. Memory is
// in micro-batches of the part of the model on a device.
type scheduleResult struct {
	Kind            string       `json:"kind"`
	Stages          int          `json:"stages"` // devices
	Microbatches    int          `json:"microbatches"`
	Chunks          int          `json:"chunks"` // of a device's part
	Weights         step.Weights `json:"weights"`
	Every           int          `json:"every"`     // micro-batches of an update
	Bubble          float64      `json:"bubble"`    // idle fraction of the step time
	StepTime        float64      `json:"step_time"` // the period of steps with no barrier between them
	Makespan        float64      `json:"makespan"`
	Idle            []float64    `json:"idle"`
	PeakActivations []int        `json:"peak_activations"` // stashed micro-batches, each counted for each stage
	PeakMemory      []float64    `json:"peak_memory"`
	// WeightVersions is the maximum number of versions of a stage's weights that a device holds at once.
	WeightVersions []int `json:"kept_versions"`
}

func newScheduleResult(t step.Timeline) (scheduleResult, error) {
	s := t.Plan
	r := scheduleResult{Kind: s.Name, Stages: len(s.Ranks), Microbatches: s.Micro, Chunks: s.Chunks(),
		Weights: s.Weights, Every: s.Every, Bubble: t.Bubble, StepTime: t.StepTime, Makespan: t.Makespan, Idle: t.Idle,
		PeakActivations: t.PeakActivations, PeakMemory: t.PeakMemory}
	versions, err := s.WeightVersions()
	if err != nil {
		return r, err
	}
	for _, stages := range versions {
		most := 0
		for _, versions := range stages {
			most = max(most, versions)
		}
		r.WeightVersions = append(r.WeightVersions, most)
	}
	return r, nil
}

// text returns the drawing and the results. usual says that all costs are the defaults, for which the bubble has a
// formula.
func (r scheduleResult) text(t step.Timeline, usual bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d devices, %d micro-batches", r.Kind, r.Stages, r.Microbatches)
	if r.Chunks > 1 {
		fmt.Fprintf(&b, ", %d chunks a device", r.Chunks)
	}
	fmt.Fprintf(&b, "\n\n%v\n", t)
	fmt.Fprintf(&b, "bubble     %.2f%% of a device's time%s\n", 100*r.Bubble, r.fraction(usual))
	fmt.Fprintf(&b, "step time  %g, the period of steps with no barrier between them\n", r.StepTime)
	fmt.Fprintf(&b, "makespan   %g, from the first start to the last end\n", r.Makespan)
	fmt.Fprintf(&b, "memory     at most %s micro-batches of its part are saved on device 0, 1, …\n", join(r.PeakMemory))
	if r.Weights != step.Flush {
		fmt.Fprintf(&b, "versions   at most %s of the weights are stored on device 0, 1, …; one update for each %d "+
			"micro-batches\n", join(r.WeightVersions), r.Every)
		fmt.Fprintf(&b, "           The bubble is that of filling and draining the pipeline once: a longer run has "+
			"none.\n")
	}
	return b.String()
}

// fraction is the bubble as idle time / total time, if both are integers in units of a chunk.
func (r scheduleResult) fraction(usual bool) string {
	idle := new(big.Rat)
	for _, x := range r.Idle {
		idle.Add(idle, chunkUnits(x, r.Chunks))
	}
	all := new(big.Rat).Mul(chunkUnits(r.StepTime, r.Chunks), big.NewRat(int64(r.Stages), 1))
	if all.Sign() == 0 {
		return ""
	}
	share := idle.Quo(idle, all)
	switch formula := r.formula(share); {
	case share.Denom().BitLen() > 24:
		return "" // costs were no small whole numbers
	case usual && formula != "":
		return fmt.Sprintf(": %s, as %s", share.RatString(), formula)
	}
	return ": " + share.RatString()
}

// formula is the closed form of the bubble, if the kind has one and it agrees with the simulation.
func (r scheduleResult) formula(share *big.Rat) string {
	kind, chunks := pipeline.Kind(r.Kind), 0
	if kind.Chunked() {
		chunks = r.Chunks
	}
	idle, total, ok := pipeline.Bubble(kind, r.Stages, r.Microbatches, chunks)
	if !ok || share.Cmp(big.NewRat(int64(idle), int64(total))) != 0 {
		return ""
	}
	d, m, usual := r.Stages, r.Microbatches, idle == r.Stages-1 // else there are few micro-batches, and more is idle
	switch {
	case kind == pipeline.KindNaive:
		return "(d-1)/d"
	case kind == pipeline.KindGPipe || kind == pipeline.Kind1F1B:
		return "(d-1)/(m+d-1)"
	case kind.Chunked() && usual:
		return "(d-1)/(v·m+d-1)"
	case kind == pipeline.KindZBH1 && usual:
		return "(d-1)/(3m+d-1)"
	case (kind == pipeline.KindZBH2 || kind == pipeline.KindZBV) && m < 2*d-1:
		return "(2d-1-m)/(3m+2d-1-m)"
	case kind == pipeline.KindDualPipe:
		return "(d-2)/(3m+d-2)"
	}
	return ""
}

// chunkUnits converts a time to units of a chunk's costs; with integer costs the result is an integer.
func chunkUnits(x float64, chunks int) *big.Rat {
	x *= float64(chunks)
	if n := math.Round(x); math.Abs(x-n) < 1e-9*n {
		x = n
	}
	exact, _ := big.NewFloat(x).Rat(nil)
	return exact
}

func join[T any](list []T) string {
	var texts []string
	for _, x := range list {
		texts = append(texts, fmt.Sprint(x))
	}
	return strings.Join(texts, ", ")
}

// parseCosts reads costs as in F=1:2:1:1,B=2,link=0.1. Missing costs are those of step.Equal.
func parseCosts(text string) (step.Costs, error) {
	c := step.Equal()
	if text == "" {
		return c, nil
	}
	var link []float64
	lists := map[string]*[]float64{"F": &c.Forward, "I": &c.InputGrad, "W": &c.WeightGrad, "B": &c.Backward,
		"U": &c.Update,
		"A": &c.Activation, "K": &c.Kept, "link": &link}
	seen := map[string]bool{}
	for _, setting := range strings.Split(text, ",") {
		name, values, ok := strings.Cut(setting, "=")
		list := lists[name]
		switch {
		case !ok || list == nil:
			return c, fmt.Errorf("--cost=%.60s: %.20q is an unknown cost: want F, I, W, B, U, A, K or link, as in "+
				"F=1,B=2", text, setting)
		case seen[name]:
			return c, fmt.Errorf("--cost=%.60s: %s is given twice", text, name)
		}
		seen[name] = true
		*list = nil
		for _, value := range strings.Split(values, ":") {
			x, err := strconv.ParseFloat(value, 64)
			if err != nil || !(x >= 0 && x <= 1e15) {
				return c, fmt.Errorf("--cost=%.60s: %s=%.20s: want numbers from 0 to 1e15, "+
					"one or, with : between them, one for each device", text, name, value)
			}
			*list = append(*list, x)
		}
	}
	if len(link) > 1 {
		return c, fmt.Errorf("--cost=%.60s: link has %d values: give one, since all links have the same cost", text,
			len(link))
	}
	if len(link) == 1 && link[0] > 0 {
		c.Link = func(int, int) float64 { return link[0] }
	}
	return c, nil
}

// checkCosts returns an error for a list whose length is not the number of parts of the pipeline.
func checkCosts(text string, c step.Costs, parts int) error {
	for _, list := range [][]float64{c.Forward, c.InputGrad, c.WeightGrad, c.Backward, c.Update, c.Activation, c.Kept} {
		if n := len(list); n > 1 && n != parts {
			return fmt.Errorf("--cost=%.60s: a list has %d values for %d stages: give one for each, or one for all",
				text, n, parts)
		}
	}
	return nil
}
