// Command shardbook sets up and opens the notebooks, runs them headless, and says
// what is missing when something does not work.
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
	"github.com/shardbook/shardbook/kernel"
	"github.com/shardbook/shardbook/lib/xla"
	"github.com/shardbook/shardbook/lib/xla/plugin"
)

func main() {
	ctx := signals.context()
	err := newCommand().ExecuteContext(ctx)
	if err == nil {
		return
	}
	status := exitStatus(1)
	var early beforeCrew
	said := errors.Is(err, errSaid) || errors.As(err, &status) || errors.As(err, &early) && !early.mine(ctx)
	if !said {
		fmt.Fprintln(os.Stderr, "shardbook:", err)
	}
	os.Exit(int(status))
}

// errSaid ends the program with status 1 where everything is said already.
var errSaid = errors.New("said already")

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
			return s.export(cmd)
		},
	}
	flags := root.PersistentFlags()
	flags.StringVar(&s.cache, "cache", "", "cache folder (default $"+cache.EnvDir+", else shardbook in the user's cache folder)")
	flags.StringVar(&s.plugin, "plugin", "", "PJRT plugin: a path, cpu, cuda, or go-xla for its release, which is not verified (default $"+plugin.Env+", else the best that is there)")
	flags.IntVar(&s.devices, "devices", 0, "number of devices where a program does not choose it (default $"+xla.EnvDevices+", else "+strconv.Itoa(xla.DefaultDevices)+" on CPU)")
	root.AddCommand(labCommand(), notebooksCommand(), doctorCommand(), setupCommand(), execCommand(), probeCommand(),
		trainCommand(), launchCommand(), estimateCommand(), scheduleCommand())
	return root
}

// release is that of this source, or the one before it.
const release = "v0.2.0"

// version is that of the module, with the commit of a build between two releases, where the program knows it: what go install was
// asked for, or what go build found in a clone.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && semver.IsValid(info.Main.Version) {
		return info.Main.Version
	}
	return release
}

// export hands the flags on through the environment, which kernels and their
// cells inherit.
func (s settings) export(cmd *cobra.Command) error {
	changed := cmd.Flags().Changed
	if changed("devices") {
		if s.devices < 1 || s.devices > xla.MaxDevices {
			return fmt.Errorf("--devices=%d: want 1 to %d", s.devices, xla.MaxDevices)
		}
		os.Setenv(xla.EnvDevices, strconv.Itoa(s.devices))
	}
	for flag, value := range map[string]string{"plugin": s.plugin, "cache": s.cache} {
		if changed(flag) && value == "" {
			return fmt.Errorf("--%s is empty: give it a value, or leave it out", flag)
		}
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

// here is the kernel of the project that the working folder lies in.
func here() (*kernel.Kernel, error) { return kernel.New(".", "") }

// setUp sets the kernel up and shows how far that has come.
func setUp(ctx context.Context, k *kernel.Kernel) error {
	progress := newProgress("setting up")
	defer progress.done()
	return k.Setup(ctx, progress.show)
}
