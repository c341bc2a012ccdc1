// Command bench measures this project against others that do the same, side by side in one run on the machine at hand.
//
//	go run ./bench install                      installs the peers
//	go run ./bench collectives --peers          prints ratios
//	go run ./bench collectives --peers --json   prints JSON lines
//
// Each implementation runs in processes of its own, which are warmed up once per case. The implementations take turns,
// so that what else the machine does affects all of them. The result is the ratio of times taken in the same turn; a
// time by itself says little on a shared machine.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// benchmarks are all there are; each has a file of its own name.
var benchmarks = []func() *benchmark{newCollectives, newTraining, newData, newTensor, newZero, newZeroMemory,
	newFlash, newPipeline, newHosts, newCell, newGPU}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := newCommand().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "bench",
		Short:         "Measure this project against others, side by side",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, fresh := range benchmarks {
				b := fresh()
				fmt.Printf("%-12s  %s\n", b.name, b.about)
				for _, im := range b.implementations() {
					fmt.Printf("  %-14s  %s, %s\n", im.name, im.role, im.about)
				}
			}
			return nil
		},
	}
	root.AddCommand(installCommand(), tablesCommand(), rerunCommand(), packCommand())
	for _, fresh := range benchmarks {
		root.AddCommand(benchmarkCommand(fresh()))
	}
	return root
}

// benchmarkCommand is the command that runs one benchmark, or in a worker process one of its implementations.
func benchmarkCommand(b *benchmark) *cobra.Command {
	var s settings
	var worker string
	cmd := &cobra.Command{
		Use:   b.name,
		Short: b.about,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if worker != "" {
				return serveWorker(cmd.Context(), b, worker)
			}
			r := newReport(b, s)
			r.Command = commandLine(cmd)
			return r.finish(s.run(cmd.Context(), b, r))
		},
	}
	s.flags(cmd.Flags(), b)
	b.flags(cmd.Flags())
	cmd.Flags().StringVar(&worker, "worker", "", "serve as this implementation's process")
	cmd.Flags().MarkHidden("worker")
	return cmd
}
