package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/shardbook/shardbook/internal/flags"
	"github.com/shardbook/shardbook/internal/job"
	"github.com/shardbook/shardbook/lib/cost"
)

// estimateOptions set the output of an estimate, not its result.
type estimateOptions struct {
	file                          string
	list, printConfig             bool
	json, detail, compare, advise bool
	units                         string
}

func estimateCommand() *cobra.Command {
	o, settings := estimateOptions{}, newEstimateSettings()
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
				return fmt.Errorf("--devices is for commands that open XLA devices: give the layout instead, " +
					"as in --data 8 --tensor 4")
			case o.list:
				return listModels(cmd.OutOrStdout(), o.json)
			case o.printConfig:
				return flags.Print(cmd.OutOrStdout(), cmd.Flags())
			}
			units, err := parseUnits(o.units)
			if err != nil {
				return err
			}
			e, err := (&estimateRequest{*settings, cmd.Flags()}).estimate(o)
			if err != nil {
				return flags.Located(cmd.Flags(), err)
			}
			if o.json {
				return writeJSON(cmd.OutOrStdout(), e)
			}
			_, err = io.WriteString(cmd.OutOrStdout(), e.text(units, o.detail))
			return err
		},
	}
	f := cmd.Flags()
	settings.flags(f)
	f.StringVar(&o.file, "file", "", "read settings from a file of JSON, YAML or TOML")
	f.BoolVar(&o.printConfig, "print-config", false, "print the settings as a file for --config, in YAML, and do "+
		"nothing more")
	f.BoolVar(&o.list, "list-models", false, "list the published models, and do nothing more")
	flags.Settings(f, "config", "yaml", "yml", "toml")
	flags.Settings(f, "file")
	flags.NotInFiles(f, "print-config", "list-models")
	flags.Group(f, job.GroupRun)
	f.BoolVar(&o.json, "json", false, "print one JSON object, in bytes, and nothing else")
	f.BoolVar(&o.detail, "detail", false, "print every line with its formula, values and source")
	f.BoolVar(&o.compare, "compare", false, "print what published conventions count beside ours")
	f.BoolVar(&o.advise, "advise", false, "print what would save memory even where the run fits")
	f.StringVar(&o.units, "units", "GB", "units of what is printed: GB, which are 10⁹ bytes, or GiB, 2³⁰")
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
