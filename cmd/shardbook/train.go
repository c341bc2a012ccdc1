package main

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shardbook/shardbook/internal/flags"
	"github.com/shardbook/shardbook/internal/job"
	"github.com/shardbook/shardbook/internal/mpijob"
	"github.com/shardbook/shardbook/internal/plugin"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/parallel"
)

func trainCommand() *cobra.Command {
	j := job.New()
	o := trainOptions{engine: engineLocal, timeout: group.DefaultTimeout, saveEvery: 100, keep: 2, grace: usualGrace,
		prompt: "func ", sampling: gpt.Sampling{Temperature: 0.8}}
	cmd := &cobra.Command{
		Use:   "train",
		Short: "Train a GPT on text, on one device or on several",
		Long: `Train a byte-level GPT on Go's standard library, or on any file or folder.

Layout: --data, --tensor, --seq-parallel and --pipe are numbers of devices, which multiply; --zero shards what
data-parallel devices hold; --replicas repeats all of it. The losses are those of one device but for rounding.
--expert-parallel divides experts among --data devices: neighbouring ranks, or, where a rank drives all of them
(with --replicas, --tensor, --seq-parallel, or --zero alone), the devices of a rank.

--sync says how devices exchange gradients. Ranks with programs of their own: naive (an all-reduce for each
gradient, after the backward pass), overlap (each as soon as it is there), bucket (overlap, in buckets), ranks
(block by block), ps (parameter servers), async (ps, but ranks do not wait for each other: runs are not
reproducible). One program on all devices: spmd (with an all-reduce in it), auto (the compiler shards it).
The default is bucket; ranks with --pipe or several techniques; spmd with --zero, --tensor or --seq-parallel
alone.

--schedule is the order of the forward and backward passes in a pipeline:
` + wrapped(flags.Texts(scheduleKinds()[:len(scheduleKinds())-1])) + `
The last three update stages at different times. "shardbook schedule" draws them.

Settings may come from a file, --config, which --print-config writes. Flags that are given as well win.

With --checkpoint the run is saved as it goes and when it is interrupted. --resume continues it, bit for bit,
with the settings of the checkpoint; --steps and the layout may change. With --engine mpi each rank is a process
that mpirun starts, of a program built with -tags mpi.

Exit status: 0 the run is done; 75 a rank failed, and the run can be started again with --resume; 128 and a
signal's number where it did not end within --grace after that signal; 1 anything else.

More: docs/train.md and docs/hosts.md.`,
		Example: "  shardbook train --steps 200 --sample 300\n" +
			"  shardbook train --text book.txt --gated --norm rmsnorm --positions rotary --precision bf16 " +
			"--checkpoint run\n  shardbook train --resume --checkpoint run --steps 1000\n" +
			"  shardbook train --data 2 --zero 1 --chart loss.html --tensorboard runs/first\n" +
			"  shardbook train --layout pipe=2,data=2,tensor=2,zero=1,microbatches=4\n" +
			"  shardbook train --data 4 --sync overlap --accumulate 2 --trace trace.json --link 1e9\n" +
			"  shardbook train --pipe 4 --schedule zb-h1 --microbatches 8 --cut measured --trace trace.json\n" +
			"  shardbook train --seq 1024 --batch 2 --seq-parallel 4 --seq-method hybrid\n" +
			"  mpirun -n 4 --host a:2,b:2 shardbook train --engine mpi --pipe 2 --timeout 30s\n" +
			"  shardbook train --reference --steps 4 --json",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.printConfig {
				return flags.Print(cmd.OutOrStdout(), cmd.Flags())
			}
			if err := o.validateEngine(); err != nil {
				return mpijob.NewEarly(err)
			}
			return flags.Located(cmd.Flags(), trainAndReport(cmd, j, o))
		},
	}
	f := cmd.Flags()
	j.Flags(f)
	o.flags(f)
	flags.Complete(cmd)
	return cmd
}

// wrapped joins names in lines of a help.
func wrapped(names []string) (text string) {
	line := " "
	for i, name := range names {
		if len(line)+len(name) > 100 {
			text += line + "\n"
			line = " "
		}
		if line += " " + name; i < len(names)-1 {
			line += ","
		}
	}
	return text + line + "."
}

// Values of --engine.
const (
	engineLocal = "local" // all in this process
	engineMPI   = "mpi"   // each in a process of its own
)

// trainOptions are the settings of a run that do not change its result.
type trainOptions struct {
	config             string
	printConfig        bool
	engine             string
	timeout            time.Duration // how long a rank waits for another, with engineMPI
	devices            int           // that XLA opens; 0 means those of the layout
	checkpoint         string
	saveEvery, keep    int
	grace              time.Duration // how long it may take to end after a signal
	resume             bool
	log, trace         string
	chart, tensorboard string
	link               flags.Bytes // a second
	json               bool
	compileFor         string // a GPU
	sample             int
	prompt             string
	sampling           gpt.Sampling
}

func (o *trainOptions) flags(f *pflag.FlagSet) {
	add := flags.Adder(f)
	add(&o.config, "config", "read settings from a file of YAML, TOML or JSON, by the names of flags")
	add(&o.printConfig, "print-config", "print the settings as a YAML file for --config, and do nothing else")
	flags.Choice(f, &o.engine, "engine", []string{engineLocal, engineMPI},
		"ranks in this process, or started by mpirun: local|mpi")
	add(&o.timeout, "timeout", "time after which --engine mpi takes a silent rank as failed")
	add(&o.checkpoint, "checkpoint", "folder for checkpoints")
	add(&o.saveEvery, "save-every", "steps between checkpoints; the last step is always saved")
	add(&o.keep, "keep", "how many of the newest checkpoints to keep; 0 keeps all")
	add(&o.resume, "resume", "continue from the newest checkpoint")
	add(&o.grace, "grace", "time to end the step under way after SIGINT, SIGTERM or SIGHUP")
	add(&o.link, "link", "simulate a slow link between ranks, of bytes per second, as 1e9 or 1GB")
	flags.Choice(f, &o.compileFor, "compile-for", []string{"", "a100", "h100", "h200", "b200"},
		"compile for a GPU, print what a device needs, train nothing: a100|h100|h200|b200")
	flags.Settings(f, "config")
	flags.Folder(f, "checkpoint")
	flags.NotInFiles(f, "print-config")
	flags.Least(f, "1", "save-every")
	flags.Least(f, "0", "keep")
	flags.Least(f, "0s", "grace")
	flags.Positive(f, "timeout")
	flags.Group(f, job.GroupRun)

	add(&o.chart, "chart", "write the loss as a chart, to a file of .html or .svg")
	add(&o.tensorboard, "tensorboard", "folder for TensorBoard: loss, learning rate, tokens/s, memory")
	add(&o.log, "log", "write a line of JSON for each step to a file")
	add(&o.trace, "trace", fmt.Sprintf("write a trace of the last %d steps to a file, with GPUs' kernels (Chrome's format)", tracedSteps))
	add(&o.json, "json", "print one JSON object at the end, and nothing else")
	add(&o.sample, "sample", "bytes of text to generate with the trained model")
	add(&o.prompt, "prompt", "beginning of the generated text")
	add(&o.sampling.Temperature, "temperature", "sampling temperature; 0 always takes the likeliest byte")
	add(&o.sampling.TopK, "top-k", "sample from the k likeliest bytes only (default all)")
	flags.File(f, "chart", "html", "svg")
	flags.Folder(f, "tensorboard")
	flags.File(f, "log")
	flags.File(f, "trace", "json")
	flags.Least(f, "0", "sample")
	flags.Group(f, job.GroupOutput)
}

// needsRanks reports whether a flag is given that only runs with ranks support.
func (o *trainOptions) needsRanks() bool { return o.trace != "" || o.link > 0 }

// suits returns an error for a flag that needs several ranks, if the run does not have them.
func (o *trainOptions) suits(p job.Parallel, l parallel.Layout) error {
	switch {
	case o.trace != "" && plugin.GPUs() == 0 && p.OneProgram():
		return notOneProgram("trace", p)
	case o.link > 0 && p.OneProgram():
		return notOneProgram("link", p)
	case o.link > 0 && l.Ranks() == 1 && l.Devices() > 1:
		return fmt.Errorf("--link simulates links between ranks, but there is one rank, of %d devices: leave it out, "+
			"or add --replicas or --pipe", l.Devices())
	}
	return nil
}

// notOneProgram is the error of a flag that one program on all devices cannot have. GPUs have a profiler, so --trace is
// no such flag there.
func notOneProgram(flag string, p job.Parallel) error {
	return fmt.Errorf("--%s: not available for one program on all devices: choose --sync, one of %s", flag, p.RankWays())
}

// validateEngine returns an error if the processes that were started cannot be the job's ranks.
func (o *trainOptions) validateEngine() error {
	switch n := mpijob.Started(); {
	case o.engine == engineMPI && o.trace != "":
		return fmt.Errorf("--trace and --engine=%s: each process has its own clock, so their spans cannot be "+
			"compared: leave one of them out", engineMPI)
	case o.engine == engineLocal && n > 1:
		return fmt.Errorf("--engine=%s: mpirun started %d processes, each of which would train for itself: add "+
			"--engine %s", o.engine, n, engineMPI)
	}
	return nil
}

func (o *trainOptions) validate(given func(flag string) bool, j *job.Job) error {
	switch extension := filepath.Ext(o.chart); {
	case o.sample > 0 && o.prompt == "":
		return fmt.Errorf("--prompt is empty: give it at least one byte to begin with")
	case o.resume && o.checkpoint == "":
		return fmt.Errorf("--resume needs the folder to continue from: --checkpoint DIR")
	case o.chart != "" && extension != ".html" && extension != ".svg":
		return fmt.Errorf("--chart=%s: want a file with the extension .html or .svg", o.chart)
	}
	if err := o.validateCompile(); err != nil {
		return err
	}
	if err := j.Complete(given); err != nil {
		return err
	}
	o.sampling.Seed = uint64(j.Seed)
	return o.sampling.Validate()
}
