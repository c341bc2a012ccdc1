package main

import (
	"fmt"
	"io"
	"slices"
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
