package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/shardbook/shardbook/lib/cost"
)

// estimateOptions say how an estimate is shown; they do not change it.
type estimateOptions struct {
	file                          string
	list                          bool
	json, detail, compare, advise bool
	units                         string
}

func estimateCommand() *cobra.Command {
	var o estimateOptions
	cmd := &cobra.Command{
		Use:   "estimate",
		Short: "Estimate the memory of a training run, with no device",
		Long: "Estimate the memory of a training run on each device, line by line, before any device is touched.\n\n" +
			"The model is a published one (--model), a Hugging Face config.json (--config), sizes as in shardbook train\n" +
			"(--layers, --d, --heads, --vocab, --seq), or only a number of parameters (--params), of which the states alone are known.\n" +
			"--file reads the same settings from a file of JSON, with _ for - in their names: {\"model\": \"Llama 3 8B\", \"seq_parallel\": true}.\n" +
			"Flags that are given go before the file.",
		Example: "  shardbook estimate --params 7.5e9 --data 64 --zero 1\n" +
			"  shardbook estimate --model \"Llama 3 8B\" --data 8 --zero 3 --flash --seq 4096 --device \"H100 SXM\"\n" +
			"  shardbook estimate --config config.json --tensor 8 --seq-parallel --pipe 4 --microbatches 16 --detail\n" +
			"  shardbook estimate --file run.json --json",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			signals.allow(0) // it only computes
			switch {
			case cmd.Flags().Changed("devices"):
				return fmt.Errorf("--devices is the number of XLA's devices, and none is opened: give the layout, as in --data 8 --tensor 4")
			case o.list:
				return listModels(cmd.OutOrStdout(), o.json)
			}
			units, err := parseUnits(o.units)
			if err != nil {
				return err
			}
			settings, err := readEstimateSettings(cmd.Flags(), o.file)
			if err != nil {
				return err
			}
			e, err := settings.estimate(o)
			if err != nil {
				return err
			}
			if o.json {
				return writeJSON(cmd.OutOrStdout(), e)
			}
			_, err = io.WriteString(cmd.OutOrStdout(), e.text(units, o.detail))
			return err
		},
	}
	f := cmd.Flags()
	estimateFlags(f, newEstimateSettings())
	f.StringVar(&o.file, "file", "", "read settings from a file of JSON")
	f.BoolVar(&o.list, "list-models", false, "list the published models, and do nothing more")
	f.BoolVar(&o.json, "json", false, "print one JSON object, in bytes, and nothing else")
	f.BoolVar(&o.detail, "detail", false, "print every line with its formula, values and source")
	f.BoolVar(&o.compare, "compare", false, "print what published conventions count beside ours")
	f.BoolVar(&o.advise, "advise", false, "print what would save memory even where the run fits")
	f.StringVar(&o.units, "units", "GB", "of what is printed: GB, which are 10⁹ bytes, or GiB, 2³⁰")
	return cmd
}

// listModels prints the names that --model knows.
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
		if _, err := fmt.Fprintf(out, "%-20s %16s parameters, %3d blocks of width %d\n", m.Name, grouped(m.Params), m.Layers, m.Width); err != nil {
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
