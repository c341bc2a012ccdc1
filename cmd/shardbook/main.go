// Command shardbook trains models, estimates memory, draws schedules, installs and opens the notebooks, runs them
// headless, and diagnoses problems.
//
//	go run ./cmd/shardbook lab
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"

	"github.com/spf13/cobra"
	"golang.org/x/mod/semver"

	"github.com/shardbook/shardbook/internal/cache"
	"github.com/shardbook/shardbook/internal/flags"
	"github.com/shardbook/shardbook/internal/mpijob"
	"github.com/shardbook/shardbook/internal/plugin"
	"github.com/shardbook/shardbook/kernel"
	"github.com/shardbook/shardbook/lib/xla"
)

func main() {
	ctx := signals.context()
	err := newCommand().ExecuteContext(ctx)
	if err == nil {
		return
	}
	status := mpijob.ExitStatus(1)
	var early mpijob.Early
	printed := errors.As(err, &status) || errors.As(err, &early) && !early.Mine(ctx)
	if !printed {
		fmt.Fprintln(os.Stderr, "shardbook:", err)
	}
	os.Exit(int(status))
}

// settings are the flags that every command has.
type settings struct {
	cache   string
	plugin  string
	devices int
}

func newCommand() *cobra.Command {
	var s settings
	root := &cobra.Command{
		Use:           "shardbook",
		Version:       version(),
		Short:         "Notebooks and libraries for training large models on many devices",
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := flags.Settle(cmd.Flags()); err != nil {
				return mpijob.NewEarly(err)
			}
			return s.export(cmd)
		},
	}
	f := root.PersistentFlags()
	f.StringVar(&s.cache, "cache", "", "cache folder (default $"+cache.EnvDir+", or shardbook in the user's cache "+
		"folder)")
	f.StringVar(&s.plugin, "plugin", "", "PJRT plugin: cpu, cuda, go-xla or a path (default $"+plugin.Env+", or the "+
		"best)")
	f.IntVar(&s.devices, "devices", 0, fmt.Sprintf("number of devices, unless a program sets it (default $%s, or %d "+
		"on CPU)", xla.EnvDevices, xla.DefaultDevices))
	root.AddCommand(labCommand(), notebooksCommand(), doctorCommand(), setupCommand(), execCommand(), probeCommand(),
		trainCommand(), launchCommand(), estimateCommand(), scheduleCommand())
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return mpijob.NewEarly(err) })
	flags.Choices(f, "plugin", "cpu", "cuda", "go-xla")
	flags.Complete(root)
	flags.Help(root)
	return root
}

// release is the version of this source, or the one before.
const release = "v0.2.0"

// version returns the version of the module, with the commit for a build between two releases, if the program knows it:
// the version given to go install, or found by go build in a clone.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && semver.IsValid(info.Main.Version) {
		return info.Main.Version
	}
	return release
}

// export sets environment variables for the flags, which kernels and their cells inherit.
func (s settings) export(cmd *cobra.Command) error {
	changed := cmd.Flags().Changed
	if changed("devices") {
		if s.devices < 1 || s.devices > xla.MaxDevices {
			return fmt.Errorf("--devices=%d: want 1 to %d", s.devices, xla.MaxDevices)
		}
		os.Setenv(xla.EnvDevices, strconv.Itoa(s.devices))
	}
	if changed("plugin") {
		os.Setenv(plugin.Env, s.plugin)
	}
	if changed("cache") {
		dir, err := cache.Dir(s.cache)
		if err != nil {
			return fmt.Errorf("--cache=%q: %w", s.cache, err)
		}
		os.Setenv(cache.EnvDir, dir)
	}
	return nil
}

// here returns the kernel of the project that contains the working folder.
func here() (*kernel.Kernel, error) { return kernel.New(".", "") }

// setUp installs the kernel and shows the progress.
func setUp(ctx context.Context, k *kernel.Kernel) error {
	progress := newProgress("setting up")
	defer progress.done()
	return k.Setup(ctx, progress.show)
}

// inFlag adds a flag's name to an error; nil stays nil.
func inFlag(flag string, err error) error {
	if err != nil {
		err = fmt.Errorf("--%s: %w", flag, err)
	}
	return err
}
