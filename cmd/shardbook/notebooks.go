package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/shardbook/shardbook/internal/flags"
	"github.com/shardbook/shardbook/internal/mpijob"
	"github.com/shardbook/shardbook/internal/plugin"
	"github.com/shardbook/shardbook/kernel"
	"github.com/shardbook/shardbook/lib/notebook"
)

func setupCommand() *cobra.Command {
	var cuda bool
	cmd := &cobra.Command{
		Use:   "setup",
		Short: "Install what the notebooks need, and do nothing more",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			k, err := here()
			if err != nil {
				return err
			}
			if cuda {
				if err := setUpCUDA(cmd, k); err != nil {
					return err
				}
			}
			return setUp(cmd.Context(), k)
		},
	}
	cmd.Flags().BoolVar(&cuda, "cuda", false, "also install what NVIDIA GPUs need (2 GB to download, 3 GB on the disk)")
	return cmd
}

// setUpCUDA installs the plugin for CUDA, and says what it lacks on this machine: an image, for example, is built on a
// machine without a GPU.
func setUpCUDA(cmd *cobra.Command, k *kernel.Kernel) error {
	progress := newProgress("setting up")
	defer progress.done()
	if err := k.SetupCUDA(cmd.Context(), progress.show); err != nil {
		return err
	}
	p, err := plugin.Find(string(plugin.CUDA), k.Cache)
	if err == nil {
		_, err = p.Driver()
	}
	progress.done()
	if err != nil {
		cmd.PrintErrln("note: the plugin for CUDA is installed, but cannot be used here:", err)
	}
	return nil
}

func labCommand() *cobra.Command {
	var lab kernel.Lab
	cmd := &cobra.Command{
		Use:   "lab [-- ARGUMENTS OF JUPYTER LAB]",
		Short: "Set up, then open JupyterLab on the notebooks",
		RunE: func(cmd *cobra.Command, args []string) error {
			if lab.Port < 0 || lab.Port > 65535 {
				return fmt.Errorf("--port=%d: want 1 to 65535, or 0 for Jupyter's choice", lab.Port)
			}
			k, err := here()
			if err != nil {
				return err
			}
			if err := setUp(cmd.Context(), k); err != nil {
				return err
			}
			lab.Args = args
			jupyter, err := k.LabCommand(cmd.Context(), lab)
			if err != nil {
				return err
			}
			if warning := lab.Warning(); warning != "" {
				cmd.PrintErrln(warning)
			}
			// JupyterLab replaces this process, so that it has the terminal, the signals and the exit status.
			return syscall.Exec(jupyter.Path, jupyter.Args, jupyter.Env)
		},
	}
	cmd.Flags().BoolVar(&lab.NoBrowser, "no-browser", false, "do not open a browser")
	cmd.Flags().StringVar(&lab.IP, "ip", "", "address to listen on (default localhost)")
	cmd.Flags().IntVar(&lab.Port, "port", 0, "port to listen on (default 8888, or the next that is free)")
	return cmd
}

func execCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "exec COMMAND [ARGUMENTS]",
		Short: "Run a command in the kernel's environment, as with another Jupyter or an editor",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			k, err := here()
			if err != nil {
				return err
			}
			c, err := k.Command(cmd.Context(), args[0], args[1:]...)
			if err != nil {
				return err
			}
			return syscall.Exec(c.Path, c.Args, c.Env)
		},
		DisableFlagsInUseLine: true,
	}
	cmd.Flags().SetInterspersed(false) // flags after COMMAND are the command's own
	return cmd
}

func doctorCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say of every part whether it is there, and what to do where it is not",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			k, err := here()
			if err != nil {
				return err
			}
			self, err := os.Executable()
			if err != nil {
				return err
			}
			d := k.Doctor(cmd.Context(), func(ctx context.Context) *exec.Cmd {
				return exec.CommandContext(ctx, self, "probe")
			})
			if asJSON {
				out := json.NewEncoder(os.Stdout)
				out.SetIndent("", "  ")
				err = out.Encode(d)
			} else {
				_, err = fmt.Print(d)
			}
			if err == nil && !d.OK {
				err = mpijob.ExitStatus(1)
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// probeCommand opens the plugin in a process of its own, so that a crash does not end the doctor.
func probeCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "probe",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return json.NewEncoder(os.Stdout).Encode(kernel.RunProbe(cmd.Context()))
		},
	}
}

// progress shows the progress of long work on standard error: on a terminal as one line that is redrawn, elsewhere as a
// line whenever the stage changes.
type progress struct {
	bar   *progressbar.ProgressBar // nil where standard error is no terminal
	title string
	stage string
	total int
}

func newProgress(title string) *progress {
	return &progress{title: title}
}

// show shows that done of total steps of a stage are done (0 means unknown). It is a kernel.Report.
func (p *progress) show(stage string, done, total int, what string) {
	if !term.IsTerminal(int(os.Stderr.Fd())) {
		if p.stage != stage {
			p.stage = stage
			fmt.Fprintf(os.Stderr, "%s: %s: %s\n", p.title, stage, what)
		}
		return
	}
	if p.stage != stage || p.total != total || p.bar == nil {
		p.done()
		p.stage, p.total = stage, total
		steps := total
		if steps == 0 {
			steps = -1 // a spinner
		}
		p.bar = progressbar.NewOptions(steps,
			progressbar.OptionSetWriter(os.Stderr),
			progressbar.OptionSetWidth(16),
			progressbar.OptionSetPredictTime(false),
			progressbar.OptionClearOnFinish(),
		)
	}
	p.bar.Describe(fmt.Sprintf("%-45.45s", stage+": "+what)) // with the bar, no wider than 80 columns
	p.bar.Set(done)
}

// done removes the bar.
func (p *progress) done() {
	if p.bar != nil {
		p.bar.Finish()
		p.bar = nil
	}
}

func notebooksCommand() *cobra.Command {
	var (
		out       string
		update    bool
		inProcess bool
		params    []string
		timeout   time.Duration
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
			if inProcess {
				env = append(env, kernel.InProcess)
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
	cmd.Flags().BoolVar(&inProcess, "in-process", false,
		"open devices in each cell, not in a process beside the kernel")
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
