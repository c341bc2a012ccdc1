package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardbook/shardbook/kernel"
	"github.com/shardbook/shardbook/lib/notebook"
)

// rerunRatio is how many times longer the first run of a notebook should take than the second.
const rerunRatio = 3

func rerunCommand() *cobra.Command {
	var rounds int
	cmd := &cobra.Command{
		Use:   "rerun NOTEBOOK...",
		Short: "Run a notebook's cells twice in one kernel, and print the first run's time over the second's",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, names []string) error {
			if rounds < 1 {
				return fmt.Errorf("--rounds=%d: want 1 or more", rounds)
			}
			k, err := kernel.New(".", "")
			if err != nil {
				return err
			}
			paths, err := k.FindNotebooks(names)
			if err != nil {
				return err
			}
			for _, path := range paths {
				first, second, err := rerun(cmd.Context(), k, path, rounds)
				if err != nil {
					return err
				}
				name := filepath.Base(path)
				ratios := pairRatios(second, []sampleTimes{first})
				fmt.Printf("%s, first run over second: ratio %.2f, least %.2f, of least times %.2f\n", name, median(ratios),
					slices.Min(ratios), first.min()/second.min())
				fmt.Println(target{fmt.Sprintf("the first run of %s takes at least %d times the second", name, rerunRatio),
					median(ratios) >= rerunRatio})
			}
			return nil
		},
	}
	cmd.Flags().IntVar(&rounds, "rounds", 3, "kernels, in each of which the cells run twice")
	return cmd
}

// rerun runs a notebook's cells twice in a new kernel in each round. It returns the milliseconds of all cells.
func rerun(ctx context.Context, k *kernel.Kernel, path string, rounds int) (first, second sampleTimes, err error) {
	cells, err := kernel.Source(path)
	if err != nil {
		return nil, nil, err
	}
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return nil, nil, err
	}
	defer os.RemoveAll(dir)
	twice := filepath.Join(dir, filepath.Base(path))
	if err := writeNotebook(twice, slices.Repeat(cells, 2)); err != nil {
		return nil, nil, err
	}
	for range notebook.Progress(filepath.Base(path), rounds) {
		var times kernel.Times
		if err := k.Headless(ctx, kernel.Run{Notebook: twice, OnRan: times.Ran}); err != nil {
			return nil, nil, err
		}
		first = append(first, milli(times[:len(cells)]))
		second = append(second, milli(times[len(cells):]))
	}
	return first, second, nil
}

// milli is the milliseconds that cells took together.
func milli(times kernel.Times) float64 {
	var sum time.Duration
	for _, t := range times {
		sum += t.Took
	}
	return sum.Seconds() * 1e3
}

// writeNotebook writes a notebook of code cells.
func writeNotebook(path string, cells []string) error {
	type cell struct {
		Type     string   `json:"cell_type"`
		ID       string   `json:"id"`
		Source   string   `json:"source"`
		Metadata struct{} `json:"metadata"`
		Outputs  []any    `json:"outputs"`
		Count    *int     `json:"execution_count"`
	}
	file := map[string]any{"nbformat": 4, "nbformat_minor": 5, "metadata": struct{}{}}
	all := make([]cell, len(cells))
	for i, source := range cells {
		all[i] = cell{Type: "code", ID: fmt.Sprint("cell-", i), Source: source, Outputs: []any{}}
	}
	file["cells"] = all
	text, err := json.Marshal(file)
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o644)
}
