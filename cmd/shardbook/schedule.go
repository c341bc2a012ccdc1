package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shardbook/shardbook/internal/userfile"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/step"
)

// scheduleOptions are the flags of the command.
type scheduleOptions struct {
	kind                         string
	stages, microbatches, chunks int
	cost                         string
	memory                       float64
	json                         bool
	csv, read, trace, chart      string
}

func scheduleCommand() *cobra.Command {
	var o scheduleOptions
	cmd := &cobra.Command{
		Use:   "schedule",
		Short: "Draw and time a pipeline schedule, with no device",
		Long: "Draw a schedule of pipeline parallelism, and print its bubble, step time and memory, with no device.\n\n" +
			"In the picture a number is a micro-batch, alone for its forward pass and with a letter for others.\n" +
			"--stages is the number of devices, each of which has an equal part of the model. Kinds that cut that part into chunks\n" +
			"have --chunks of them (zb-v has two), each of which takes as much less time and memory, so that kinds can be compared.\n" +
			"--cost says how long a part's passes take for a micro-batch, in any unit: F forward, I and W the backward pass's halves\n" +
			"for the input and the weights, B both together (default I+W), U the update, link a message between devices; and what it\n" +
			"stashes: A, of which the share K is left between I and W. A value for each part is written F=1:2:1:1.\n" +
			"--kind search looks for the fastest schedule for these costs that keeps to --memory.",
		Example: "  shardbook schedule --kind 1f1b --stages 4 --microbatches 8\n" +
			"  shardbook schedule --kind interleaved --stages 4 --microbatches 8 --chunks 2 --cost F=1,B=2,link=0.1 --json\n" +
			"  shardbook schedule --kind search --stages 4 --microbatches 8 --cost F=1:2:1:1,I=1:2:1:1,W=1 --memory 3\n" +
			"  shardbook schedule --kind zb-h1 --csv schedule.csv --trace schedule.json --chart schedule.html\n" +
			"  shardbook schedule --read schedule.csv",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			signals.allow(0) // it only computes
			if err := o.validate(cmd); err != nil {
				return err
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
	f.StringVar(&o.kind, "kind", string(pipeline.Kind1F1B), "one of "+strings.Join(scheduleKinds(), ", "))
	f.IntVar(&o.stages, "stages", 4, "devices of the pipeline")
	f.IntVar(&o.microbatches, "microbatches", 8, "micro-batches of a step")
	f.IntVar(&o.chunks, "chunks", 0, "stages that a device has, of the kinds that let one choose (default 2; search: 1)")
	f.StringVar(&o.cost, "cost", "", "what passes take, as F=1,I=1,W=1,B=2,U=0,link=0,A=1,K=1 (which is the default)")
	f.Float64Var(&o.memory, "memory", 0,
		"with --kind search: the most that a device may stash, in micro-batches of its part (0: no limit)")
	f.BoolVar(&o.json, "json", false, "print one JSON object, and nothing else")
	f.StringVar(&o.csv, "csv", "", "write the schedule as CSV, as PyTorch does; - prints it, and nothing else")
	f.StringVar(&o.read, "read", "", "read the schedule from a file of CSV, or of this project's text; - is the standard input")
	f.StringVar(&o.trace, "trace", "", "write the simulated step as a Chrome trace, a unit of time as a millisecond")
	f.StringVar(&o.chart, "chart", "", "write charts of time and memory as a page of HTML")
	return cmd
}

// kindSearch is the kind that is looked for.
const kindSearch = string(pipeline.KindSearch)

func scheduleKinds() (names []string) {
	for _, k := range pipeline.Kinds() {
		names = append(names, string(k))
	}
	return append(names, kindSearch)
}

// validate refuses flags that say nothing together.
func (o *scheduleOptions) validate(cmd *cobra.Command) error {
	changed := cmd.Flags().Changed
	switch {
	case changed("devices"):
		return fmt.Errorf("--devices is the number of XLA's devices, and none is opened: give the pipeline's as --stages")
	case !slices.Contains(scheduleKinds(), o.kind):
		return fmt.Errorf("--kind=%.40s: want one of %s", o.kind, strings.Join(scheduleKinds(), ", "))
	case changed("memory") && o.kind != kindSearch:
		return fmt.Errorf("--memory is for --kind %s: the schedule of kind %s is what it is", kindSearch, o.kind)
	case !(o.memory >= 0):
		return fmt.Errorf("--memory=%g: give the micro-batches that a device may stash, or 0 for no limit", o.memory)
	case o.csv == "-" && o.json:
		return fmt.Errorf("--csv - and --json both print one thing and nothing else: write the CSV to a file")
	}
	for _, flag := range []string{"kind", "stages", "microbatches", "chunks"} {
		if o.read != "" && changed(flag) {
			return fmt.Errorf("--%s and --read: the file says what the schedule is; give one of the two", flag)
		}
	}
	for flag, value := range map[string]string{"csv": o.csv, "read": o.read, "trace": o.trace, "chart": o.chart} {
		if changed(flag) && value == "" {
			return fmt.Errorf("--%s is empty: give it a file, or leave it out", flag)
		}
	}
	return nil
}

// build makes, finds or reads the schedule.
func (o *scheduleOptions) build(in io.Reader, costs step.Costs) (*step.Plan, error) {
	if o.read != "" {
		s, err := readSchedule("read", o.read, in)
		if err != nil {
			return s, err
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

// maxSchedule is more bytes than any schedule has that is read.
const maxSchedule = 64 << 20

// readSchedule reads either form, by how it begins, from the file that a flag names.
func readSchedule(flag, path string, in io.Reader) (*step.Plan, error) {
	text, err := readOr(in, path, maxSchedule)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", flag, err)
	}
	var s *step.Plan
	if isScheduleText(string(text)) {
		s, err = step.Parse(string(text))
	} else {
		s, err = step.ReadCSV(strings.NewReader(string(text)))
	}
	if err != nil {
		return nil, fmt.Errorf("--%s: %s: %w", flag, path, err)
	}
	return s, nil
}

// readOr reads the file that the path names or, where that is -, the standard input.
func readOr(in io.Reader, path string, most int64) ([]byte, error) {
	if path == "-" {
		return userfile.ReadAll(in, "the standard input", most)
	}
	return userfile.Read(path, most)
}

// isScheduleText tells the text that [step.Parse] reads, by its first line that is no comment, from CSV.
func isScheduleText(text string) bool {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			word, _, _ := strings.Cut(line, " ")
			return word == "schedule" || word == "plan"
		}
	}
	return false
}
