package main

import (
	"fmt"
	"syscall"

	"github.com/spf13/cobra"

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
