package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/shardbook/shardbook/internal/mpijob"
	"github.com/shardbook/shardbook/kernel"
)

func setupCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "setup",
		Short: "Install what the notebooks need, and do nothing more",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			k, err := here()
			if err != nil {
				return err
			}
			return setUp(cmd.Context(), k)
		},
	}
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
