// Command bench measures this project against others that do the same, side by
// side in one run on the machine at hand.
//
//	go run ./bench install                      installs the peers
//	go run ./bench collectives --peers          prints ratios
//	go run ./bench collectives --peers --json   prints JSON lines
//
// Every implementation lives in a process of its own, which is warmed up once per
// case and then measured in turns with the others, so that what else the machine
// does in those seconds hits all of them. What counts is the ratio of times taken
// in the same turn; a time by itself says little on a shared machine.
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
var benchmarks = []func() benchmark{newCollectives, newTraining, newData, newTensor, newZero, newZeroMemory,
	newFlash, newPipeline, newHosts}

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
				fmt.Printf("%-12s  %s\n", b.name(), b.about())
				for _, im := range b.implementations() {
					fmt.Printf("  %-14s  %s, %s\n", im.name, im.role, im.about)
				}
			}
			return nil
		},
	}
	root.AddCommand(installCommand(), tablesCommand())
	for _, fresh := range benchmarks {
		root.AddCommand(benchmarkCommand(fresh()))
	}
	return root
}

// benchmarkCommand is the command that runs one benchmark, or in a worker process
// one of its implementations.
func benchmarkCommand(b benchmark) *cobra.Command {
	var s settings
	var asJSON, save bool
	var out, worker string
	cmd := &cobra.Command{
		Use:   b.name(),
		Short: b.about(),
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if worker != "" {
				return serveWorker(cmd.Context(), b, worker)
			}
			report, err := newReport(b, asJSON, out)
			if err != nil {
				return err
			}
			if report.Command = commandLine(cmd); save {
				if report.saved, err = resultsFolder(cmd.Context()); err != nil {
					return fmt.Errorf("--save: %w", err)
				}
			}
			return report.finish(s.run(cmd.Context(), b, report))
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&s.peers, "peers", false, "measure the peers too, and print ratios")
	flags.BoolVar(&asJSON, "json", false, "print JSON lines, one for each case and implementation")
	flags.BoolVar(&save, "save", false,
		"write all that was measured into bench/"+resultsName+", of which \"bench tables\" makes the tables")
	flags.StringVar(&out, "out", "", "folder for "+linesFile+" and "+pageFile)
	flags.StringSliceVar(&s.only, "impls", nil, "implementations to measure (default all)")
	if _, ok := b.(untimed); !ok {
		flags.IntVar(&s.rounds, "rounds", 15, "samples of each case and implementation")
	}
	flags.StringVar(&s.python, "python", os.Getenv(envPython),
		"Python interpreter that has the peers (default $"+envPython+", else what \"bench install\" installed)")
	flags.StringVar(&worker, "worker", "", "serve as this implementation's process")
	flags.MarkHidden("worker")
	b.flags(cmd)
	return cmd
}
