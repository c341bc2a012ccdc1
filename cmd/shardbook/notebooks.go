package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardbook/shardbook/internal/flags"
	"github.com/shardbook/shardbook/kernel"
	"github.com/shardbook/shardbook/lib/notebook"
)

func notebooksCommand() *cobra.Command {
	var (
		out     string
		update  bool
		params  []string
		timeout time.Duration
	)
	cmd := &cobra.Command{
		Use:   "notebooks [NAME…]",
		Short: "Set up, then run notebooks headless: all of them, or those named",
		Long: "Set up, then run notebooks headless, each in a new kernel, up to the first failing cell.\n" +
			"A failing cell, a failing shell line and anything written to standard error are failures.",
		Example: "  shardbook notebooks\n  shardbook notebooks 00-devices --set devices=16 --out results",
		RunE: func(cmd *cobra.Command, names []string) error {
			k, err := here()
			if err != nil {
				return err
			}
			paths, err := k.FindNotebooks(names)
			if err != nil {
				return err
			}
			env, err := paramEnv(paths, params)
			if err != nil {
				return err
			}
			if err := setUp(cmd.Context(), k); err != nil {
				return err
			}
			if out != "" {
				if err := os.MkdirAll(out, 0o755); err != nil {
					return fmt.Errorf("--out: %w", err)
				}
			}
			for _, path := range paths {
				r := kernel.Run{Notebook: path, Timeout: timeout, Env: env}
				name := strings.TrimSuffix(filepath.Base(path), ".ipynb")
				if out != "" {
					r.Ipynb = filepath.Join(out, name+".ipynb")
					r.HTML = filepath.Join(out, name+".html")
				}
				if err := runNotebook(cmd.Context(), k, r, name, update); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&out, "out", "", "folder for the executed notebooks and their self-contained HTML")
	cmd.Flags().BoolVar(&update, "update", false, "write the new outputs into the notebooks themselves")
	cmd.Flags().StringArrayVar(&params, "set", nil, "set a parameter that a cell reads with notebook.Param: NAME=VALUE")
	cmd.MarkFlagsMutuallyExclusive("out", "update")
	cmd.Flags().DurationVar(&timeout, "timeout", kernel.DefaultCellTimeout, "longest time for one cell")
	flags.Folder(cmd.Flags(), "out")
	flags.Positive(cmd.Flags(), "timeout")
	return cmd
}

// runNotebook runs one notebook with a progress bar and prints a line at its end.
func runNotebook(ctx context.Context, k *kernel.Kernel, r kernel.Run, name string, update bool) error {
	bar := newProgress("running")
	r.OnCell = func(cell, cells int) { bar.show(name, cell-1, cells, fmt.Sprintf("cell %d of %d", cell, cells)) }
	var times kernel.Times
	r.OnRan = times.Ran
	if update { // beside the notebook, which it replaces only when all cells have passed
		r.Ipynb = filepath.Join(filepath.Dir(r.Notebook), "."+name+".updated.ipynb")
		defer os.Remove(r.Ipynb)
	}
	start := time.Now()
	err := k.Headless(ctx, r)
	bar.done()
	if err != nil {
		return err
	}
	if update {
		if err := os.Rename(r.Ipynb, r.Notebook); err != nil {
			return err
		}
	}
	fmt.Printf("%s: passed in %.0f s (%v)\n", name, time.Since(start).Seconds(), times)
	return nil
}

// paramEnv returns the environment variable that passes --set to the cells. It is an error if no cell of the notebooks
// reads a name.
func paramEnv(notebooks, settings []string) ([]string, error) {
	if len(settings) == 0 {
		return nil, nil
	}
	params := map[string]string{}
	for _, setting := range settings {
		name, value, ok := strings.Cut(setting, "=")
		if !ok {
			return nil, fmt.Errorf("--set %q: want NAME=VALUE", setting)
		}
		params[name] = value
	}
	var read []string
	for _, path := range notebooks {
		cells, err := kernel.Source(path)
		if err != nil {
			return nil, err
		}
		read = append(read, notebook.ParamNames(cells...)...)
	}
	for name := range params {
		if !slices.Contains(read, name) {
			slices.Sort(read)
			return nil, fmt.Errorf("--set %s: no cell reads a parameter of that name; there are %q", name,
				slices.Compact(read))
		}
	}
	value, err := notebook.EncodeParams(params)
	if err != nil {
		return nil, err
	}
	return []string{notebook.EnvParams + "=" + value}, nil
}
