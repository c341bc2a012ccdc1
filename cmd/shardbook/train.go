package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/compress"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/optim"
	layouts "github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/precision"
)

func trainCommand() *cobra.Command {
	job, o := newJob(), trainOptions{}
	cmd := &cobra.Command{
		Use:   "train",
		Short: "Train a GPT on text, on one device or on several",
		Long: "Train a byte-level GPT on Go's standard library, or on any file or folder, on one device.\n" +
			"With --data N it is data-parallel on N devices, which share what they learn in one of the ways of --sync.\n" +
			"With --zero each holds only a shard of the optimizer's states, of the gradients, and of the parameters.\n" +
			"With --pipe N the model's blocks are spread over N devices, through which micro-batches go by --schedule.\n" +
			"With --tensor N each layer is spread over N devices, and with --seq-parallel N each sequence; both go with each other and\n" +
			"with --data, which is how many such groups of devices there are.\n" +
			"All of these go together, and with --sync, --every, --compress-gradients and --accumulate: then each stage of --pipe has\n" +
			"devices of its own, which share rows by --data, layers and sequences, and shard by --zero what those with other rows have in\n" +
			"common; --replicas is how many times all of that is there.\n\n" +
			"With --checkpoint the run is saved as it goes and when it is interrupted, and --resume goes on from there,\n" +
			"bit for bit as if it had not stopped; its settings come from the checkpoint. (Not so where devices do not agree\n" +
			"after each step, with --sync async and --every, and where what --compress-gradients keeps back is lost.)\n" +
			"It may go on with other devices, and share the work otherwise, for the same losses but for rounding: of what the\n" +
			"checkpoint says, another --zero leaves only --data and --accumulate, another --sync these, --zero and --prefetch, and\n" +
			"another --pipe, --tensor or --seq-parallel only --data.\n" +
			"With --engine mpi ranks are processes that mpirun starts, on one host or several, of a program built with -tags mpi: all must have the\n" +
			"same program, flags, text and --checkpoint folder; rank 0 prints and logs. Another engine is no other run: --resume goes on with\n" +
			"either. To have it save and end, send mpirun SIGUSR1, which it passes on; on SIGINT and SIGTERM it gives ranks a second to do so\n" +
			"before it kills them (--mca odls_base_sigkill_timeout 10: ten seconds, which it takes after each failure, too).\n\n" +
			"Exit status: 0 the run is done; 75 a rank was lost, and the run can be started again with --resume; 128 and a signal's number where\n" +
			"it did not end within --grace after that signal; 1 anything else.\n\n" +
			"With --reference it is the run that other systems' figures are compared with: a fixed text and fixed weights.",
		Example: "  shardbook train --steps 200 --sample 300\n" +
			"  shardbook train --text book.txt --gated --norm rmsnorm --positions rotary --precision bf16 --steps 500 --checkpoint run\n" +
			"  shardbook train --resume --checkpoint run --steps 1000\n" +
			"  shardbook train --data 4 --sync overlap --accumulate 2 --trace trace.json --link 1e9\n" +
			"  shardbook train --data 4 --zero 3 --prefetch 1\n" +
			"  shardbook train --pipe 4 --schedule zb-h1 --microbatches 8 --cut measured --trace trace.json\n" +
			"  shardbook train --data 2 --tensor 2 --tensor-sequence\n" +
			"  shardbook train --pipe 2 --data 2 --tensor 2 --zero 1 --microbatches 4\n" +
			"  shardbook train --seq 1024 --batch 2 --seq-parallel 4 --seq-method hybrid\n" +
			"  mpirun -n 4 shardbook train --engine mpi --zero 3 --checkpoint run\n" +
			"  mpirun -n 4 --host a:2,b:2 shardbook train --engine mpi --pipe 2 --timeout 30s\n" +
			"  shardbook train --reference --steps 4 --json",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.validateEngine(); err != nil {
				return beforeCrew{err}
			}
			return trainAndReport(cmd, job, o)
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return beforeCrew{err} })
	f := cmd.Flags()
	jobFlags(f, job)
	job.Parallel.flags(f)
	if err := addScheduleFlag(f); err != nil {
		panic(err) // a flag of that name is gone
	}
	f.StringVar(&o.engine, "engine", engineLocal, fmt.Sprintf("where ranks are: %s, in this process, or %s, each in a process of its own, on one device, "+
		"which mpirun starts; the same results but for rounding", engineLocal, engineMPI))
	f.DurationVar(&o.timeout, "timeout", group.DefaultTimeout, fmt.Sprintf("with --engine %s, how long a rank waits for another: "+
		"one that is killed, stalled or cut off is noticed within this time by all others, which name it and end; must be longer than any rank is late, as one that compiles longer", engineMPI))
	f.StringVar(&o.checkpoint, "checkpoint", "", "folder for checkpoints")
	f.IntVar(&o.saveEvery, "save-every", 100, "steps between checkpoints; the last step is always saved")
	f.IntVar(&o.keep, "keep", 2, "newest checkpoints to keep; 0 keeps all")
	f.BoolVar(&o.resume, "resume", false, "go on from the newest checkpoint")
	f.DurationVar(&o.grace, "grace", usualGrace, "how long the step, or the compilation, under way may take after SIGINT, SIGTERM or SIGHUP; then, or at a second signal, "+
		"the process ends without it, with status 128 and the signal's number")
	f.StringVar(&o.trace, "trace", "", fmt.Sprintf("file for a trace of what ranks did in the last %d steps, in Chrome's format", tracedSteps))
	f.Var(&o.link, "link", "bytes a second, as 1e9 or 1GB, of a simulated slow link between ranks (default none)")
	f.StringVar(&o.log, "log", "", "file for a line of JSON for each step")
	f.BoolVar(&o.json, "json", false, "print one JSON object at the end, and nothing else")

	f.IntVar(&o.sample, "sample", 0, "bytes of text to write with the trained model")
	f.StringVar(&o.prompt, "prompt", "func ", "what the text goes on from")
	f.Float64Var(&o.sampling.Temperature, "temperature", 0.8, "of the sampling; 0 always takes the likeliest byte")
	f.IntVar(&o.sampling.TopK, "top-k", 0, "sample from so many of the likeliest bytes only (default all)")
	return cmd
}

// jobFlags are the flags that decide what a run learns, on whatever devices.
func jobFlags(f *pflag.FlagSet, job *job) {
	f.BoolVar(&job.Reference, "reference", job.Reference, "the reference run: fixed text and weights, AdamW at 3e-4, float32, and 4 layers of width 256 unless said otherwise")
	f.IntVar(&job.Model.Layers, "layers", job.Model.Layers, "Transformer blocks")
	f.IntVar(&job.Model.Width, "d", job.Model.Width, "width of the model")
	f.IntVar(&job.Model.Heads, "heads", job.Model.Heads, "attention heads")
	f.IntVar(&job.Model.Seq, "seq", job.Model.Seq, "positions of a sequence")
	f.IntVar(&job.Model.KVHeads, "kv-heads", job.Model.KVHeads, "key and value heads (default as --heads)")
	f.IntVar(&job.Model.Hidden, "hidden", job.Model.Hidden, "width inside the perceptron (default 4 times --d)")
	f.BoolVar(&job.Model.Gated, "gated", job.Model.Gated, "gated perceptron (SwiGLU)")
	f.StringVar((*string)(&job.Model.Activation), "activation", string(job.Model.Activation), fmt.Sprintf("of the perceptron: %s (GELU, gated SiLU) or %s", gpt.Usual, gpt.ReLU))
	f.StringVar((*string)(&job.Model.Norm), "norm", string(job.Model.Norm), fmt.Sprintf("%s or %s", gpt.LayerNorm, gpt.RMSNorm))
	f.StringVar((*string)(&job.Model.Positions), "positions", string(job.Model.Positions), fmt.Sprintf("%s or %s", gpt.Learned, gpt.Rotary))
	f.BoolVar(&job.Model.Tied, "tied", job.Model.Tied, "head tied to the token embedding")
	f.BoolVar(&job.Model.NoBias, "no-bias", job.Model.NoBias, "no biases in the blocks")
	f.Float64Var(&job.Model.Dropout, "dropout", job.Model.Dropout, "share of values dropped in training")
	f.BoolVar(&job.Model.Flash, "flash", job.Model.Flash, "attention block by block, without holding its scores (FlashAttention); the same results but for rounding")
	f.StringVar((*string)(&job.Model.Recompute), "recompute", string(job.Model.Recompute), recomputeUsage+"; less memory for time, and the same results but for rounding")
	f.StringVar(&job.Model.Compress, "compress", job.Model.Compress, compressUsage)
	f.StringVar(&job.Model.CompressReLU, "compress-relu", job.Model.CompressReLU, compressReLUUsage())

	f.StringVar(&job.Text, "text", job.Text, "what to learn: go (the standard library's source), reference, or the path of a file or folder")
	f.Int64Var(&job.TextBytes, "text-bytes", job.TextBytes, "use only so many bytes of the text (default all)")
	f.IntVar(&job.Batch, "batch", job.Batch, "sequences of a batch")
	f.IntVar(&job.Steps, "steps", job.Steps, "batches to train on, from the first")
	f.Uint32Var(&job.Seed, "seed", job.Seed, "chooses the order of the text, dropout and stochastic rounding")

	f.StringVar(&job.Precision, "precision", job.Precision, fmt.Sprintf("one of %q", precision.Names()))
	f.BoolVar(&job.Stochastic, "stochastic-rounding", job.Stochastic, "round updates stochastically where there is no master copy")
	f.StringVar(&job.LossScale, "loss-scale", job.LossScale, "none, dynamic or a number (default dynamic for fp16, else none)")
	f.StringVar(&job.Optimizer, "optimizer", job.Optimizer, fmt.Sprintf("one of %q", optim.Names()))
	f.Float64Var(&job.LR, "lr", job.LR, "learning rate")
	f.StringVar(&job.Schedule, rateFlag, job.Schedule, "of the learning rate after the warm-up: constant, cosine or linear")
	f.IntVar(&job.Warmup, "warmup", job.Warmup, "steps in which the learning rate grows from 0")
	f.Float64Var(&job.Clip, "clip", job.Clip, "largest norm of the gradients (default no limit)")
}

// recomputeUsage is the help of --recompute.
const recomputeUsage = "what the backward pass computes again: none, block, halves, every:K, sqrt, selective or ops:A,B"

// compressUsage is the help of --compress.
const compressUsage = "codec of what is kept for the backward pass: dense, fp16, bf16, fp10, e4m3, e5m2 or int8[:GROUP], or csr:SHARE, " +
	"which is meant for --compress-relu (default as it is); with --recompute there is little left to compress"

// compressReLUUsage is the help of --compress-relu.
func compressReLUUsage() string {
	return fmt.Sprintf("codec of what comes out of a ReLU, half of which is 0 (default as --compress); "+
		"csr:SHARE has room for that share of numbers that are not 0, must not meet more, and saves memory below %.2f in float32 and %.2f in half types",
		compress.BreakEven(4), compress.BreakEven(2))
}

// trainOptions say what to do around a job; they do not change its result.
type trainOptions struct {
	engine          string
	timeout         time.Duration // how long a rank waits for another, with engineMPI
	devices         int           // that XLA is to open; 0 is what the layout needs
	checkpoint      string
	saveEvery, keep int
	grace           time.Duration // how long it may take to end after a signal
	resume          bool
	log, trace      string
	link            byteCount // a second
	json            bool
	sample          int
	prompt          string
	sampling        gpt.Sampling
}

// ofRanks is a flag that was given and that only ranks know, or "".
func (o *trainOptions) ofRanks() string {
	switch {
	case o.trace != "":
		return "trace"
	case o.link > 0:
		return "link"
	}
	return ""
}

// suits returns an error for a flag that only ranks know, where they have nothing that it could show.
func (o *trainOptions) suits(p parallel, l layouts.Layout) error {
	switch name := o.ofRanks(); {
	case name != "" && p.oneProgram():
		return fmt.Errorf("--%s: one program on all devices shows nothing of what is in it: choose --sync, one of %q", name, p.rankWays())
	case o.link > 0 && l.Ranks() == 1 && l.Devices() > 1:
		return fmt.Errorf("--link is between ranks, and there is one, of %d devices: leave it out, or add --replicas or --pipe", l.Devices())
	}
	return nil
}

func (o *trainOptions) validate(cmd *cobra.Command, j *job) error {
	for _, name := range []string{"text", "schedule-file", "checkpoint", "trace", "log"} {
		if f := cmd.Flags().Lookup(name); f.Changed && f.Value.String() == "" {
			return fmt.Errorf("--%s is empty: give it a path, or leave it out", name)
		}
	}
	switch {
	case o.saveEvery < 1:
		return fmt.Errorf("--save-every=%d: want at least 1", o.saveEvery)
	case o.keep < 0:
		return fmt.Errorf("--keep=%d: want at least 0", o.keep)
	case o.grace < 0:
		return fmt.Errorf("--grace=%v: want at least 0s", o.grace)
	case o.sample < 0:
		return fmt.Errorf("--sample=%d: want at least 0", o.sample)
	case o.sample > 0 && o.prompt == "":
		return fmt.Errorf("--prompt is empty: give it at least one byte to go on from")
	case o.resume && o.checkpoint == "":
		return fmt.Errorf("--resume needs the folder to go on from: --checkpoint DIR")
	}
	j.normalize()
	if j.Reference {
		for _, flag := range referenceFixes {
			if cmd.Flags().Changed(flag) {
				return fmt.Errorf("--%s and --reference: the reference run has its own; leave one of them out", flag)
			}
		}
		j.fixReference(cmd.Flags().Changed)
	}
	o.sampling.Seed = uint64(j.Seed)
	return o.sampling.Validate()
}
