package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"

	"github.com/spf13/cobra"

	"github.com/shardbook/shardbook/internal/mpijob"
	"github.com/shardbook/shardbook/kernel"
)

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
