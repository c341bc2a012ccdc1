package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/shardbook/shardbook/internal/flags"
	"github.com/shardbook/shardbook/internal/job"
	"github.com/shardbook/shardbook/lib/cost"
	"github.com/shardbook/shardbook/lib/memest"
)

func estimateCommand() *cobra.Command {
	var list, printConfig, asJSON bool
	var file string
	units := "GB"
	r := &estimateRequest{precision: "bf16", optimizer: "adamw", bucket: "25MB", overhead: "0", engine: "planned",
		setup: memest.Setup{Batch: 1, Microbatches: 1, Recompute: "none", Parallelism: memest.Parallelism{Data: 1,
			Tensor: 1, Context: 1, Pipeline: 1, Schedule: memest.OneFOneB, Chunks: 1}}}
	cmd := &cobra.Command{
		Use:   "estimate",
		Short: "Estimate the memory of a training run, with no device",
		Long: `Estimate the memory of a training run on each device, line by line, before any device is touched.

The model is a published one (--model), a Hugging Face config.json (--config), sizes as in shardbook train
(--layers, --d, --heads, --vocab, --seq), or only a number of parameters (--params), of which the states alone
are known.

All settings may also come from a file of YAML or TOML (--config), or of JSON (--file), by the names of the
flags, in which _ may stand for -: {"model": "Llama 3 8B", "seq_parallel": true}. Flags that are given win.`,
		Example: "  shardbook estimate --params 7.5e9 --data 64 --zero 1\n" +
			"  shardbook estimate --model \"Llama 3 8B\" --data 8 --zero 3 --flash --seq 4096 --device \"H100 SXM\"\n" +
			"  shardbook estimate --config config.json --tensor 8 --seq-parallel --pipe 4 --microbatches 16 " +
			"--detail\n  shardbook estimate --file run.json --json",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			signals.allow(0) // it only computes
			switch {
			case cmd.Flags().Changed("devices"):
				return errors.New("--devices is for commands that open XLA devices: give the layout instead, " +
					"as in --data 8 --tensor 4")
			case list:
				return listModels(cmd.OutOrStdout(), asJSON)
			case printConfig:
				return flags.Print(cmd.OutOrStdout(), cmd.Flags())
			}
			unit, err := parseUnits(units)
			if err != nil {
				return err
			}
			r.flags = cmd.Flags()
			e, err := r.estimate()
			if err != nil {
				return flags.Located(cmd.Flags(), err)
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), e)
			}
			_, err = io.WriteString(cmd.OutOrStdout(), e.text(unit))
			return err
		},
	}
	f := cmd.Flags()
	add := flags.Adder(f)
	r.addFlags(f)
	add(&file, "file", "read settings from a file of JSON, YAML or TOML")
	add(&printConfig, "print-config", "print the settings as a file for --config, in YAML, and do nothing more")
	add(&list, "list-models", "list the published models, and do nothing more")
	flags.Settings(f, "config", "yaml", "yml", "toml")
	flags.Settings(f, "file")
	flags.NotInFiles(f, "print-config", "list-models")
	flags.Group(f, job.GroupRun)
	add(&asJSON, "json", "print one JSON object, in bytes, and nothing else")
	add(&r.detail, "detail", "print every line with its formula, values and source")
	add(&r.compare, "compare", "print what published conventions count beside ours")
	add(&r.advise, "advise", "print what would save memory even where the run fits")
	add(&units, "units", "units of what is printed: GB, which are 10⁹ bytes, or GiB, 2³⁰")
	flags.Choices(f, "units", "GB", "GiB")
	flags.Group(f, job.GroupOutput)
	flags.Complete(cmd)
	return cmd
}

// listModels prints the names for --model.
func listModels(out io.Writer, asJSON bool) error {
	type listed struct {
		cost.Model
		Params int64 `json:"params"`
	}
	var models []listed
	for _, m := range cost.Presets() {
		models = append(models, listed{m, m.Params().Total()})
	}
	if asJSON {
		return writeJSON(out, map[string]any{"models": models})
	}
	for _, m := range models {
		if _, err := fmt.Fprintf(out, "%-20s %16s parameters, %3d blocks of width %d\n", m.Name, grouped(m.Params),
			m.Layers, m.Width); err != nil {
			return err
		}
	}
	return nil
}

func writeJSON(out io.Writer, v any) error {
	e := json.NewEncoder(out)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
