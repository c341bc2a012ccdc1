package main

import (
	"fmt"
	"slices"

	"github.com/gomlx/compute/dtypes"

	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// syncWay is how devices share what they learn.
type syncWay string

const (
	syncNaive   = syncWay(ddp.Naive) // those of package ddp
	syncOverlap = syncWay(ddp.Overlap)
	syncBucket  = syncWay(ddp.Bucketed)
	syncRanks   = syncWay("ranks") // the gradients of each block as soon as they are there
	syncServer  = syncWay("ps")    // parameter servers, which wait for the gradients of all ranks
	syncAsync   = syncWay("async") // those that do not
	syncSPMD    = syncWay("spmd")  // one program on all devices
	syncAuto    = syncWay("auto")  // the same, and the compiler cuts it
)

// syncWays are all of them.
func syncWays() []syncWay {
	return []syncWay{syncNaive, syncOverlap, syncBucket, syncRanks, syncServer, syncAsync, syncSPMD, syncAuto}
}

const syncUsage = "how devices share what they learn. Ranks with programs of their own: naive (an all-reduce for each gradient, " +
	"after the backward pass), overlap (each as soon as it is there), bucket (overlap, with gradients in buckets), " +
	"ranks (those of each block as soon as they are there), ps (parameter servers) or async (like ps, but ranks do not wait for each other; runs are not reproducible). " +
	"One program for all devices: spmd (an all-reduce in it) or auto (the compiler puts it in). " +
	"(default bucket; ranks with --pipe and for what several of --pipe, --zero, --tensor, --seq-parallel and --replicas make; " +
	"spmd with --zero, --tensor and --seq-parallel by themselves, where nothing else is asked for; " +
	"for one device and none of the flags of ranks, one program)"

// Served says whether there are parameter servers.
func (s syncWay) Served() bool { return s == syncServer || s == syncAsync }

// Flags that one program knows, on its own and where it shards the state.
var (
	programFlags = []string{"data", "sync", "tensor", "tensor-sequence", "tensor-overlap", "seq-parallel", "seq-method", "seq-ulysses", "placement"}
	shardedFlags = []string{"data", "sync", "zero", "prefetch", "accumulate"}
)

// choose takes a way where none is named. traced says that something is asked for that only ranks have.
func (p *parallel) choose(traced bool) {
	switch {
	case p.Sync != "" || *p == alone():
	case p.sharing() && p.beyond(programFlags...) == "" && !traced, p.Zero > 0 && p.beyond(shardedFlags...) == "" && !traced:
		p.Sync = syncSPMD
	default:
		p.Sync = p.rankWay()
	}
}

// sharing says whether devices share layers or sequences.
func (p *parallel) sharing() bool { return p.Tensor != 0 || p.SeqParallel != 0 }

// meshed says whether a rank drives all --data devices, and --replicas is the number of ranks with other rows; else --data is.
func (p *parallel) meshed() bool { return p.Replicas > 0 || p.sharing() || p.Pipe > 0 && p.Zero > 0 }

// oneProgram says that devices run one program, and not ranks their own.
func (p *parallel) oneProgram() bool { return p.Sync == "" || p.Sync == syncSPMD || p.Sync == syncAuto }

// planned says whether a run is that of a layout's plan; else it has parameter servers, or is one program of package train's.
func (p *parallel) planned() bool {
	return !p.Sync.Served() && (!p.oneProgram() || p.Sync == syncSPMD && p.Zero > 0)
}

// rankWay is the way of ranks where none is named.
func (p *parallel) rankWay() syncWay {
	if p.BucketBytes == 0 && (p.Zero > 0 || p.Pipe > 0 || p.meshed()) {
		return syncRanks
	}
	return syncBucket
}

// rankWays are the ways of ranks that there are.
func (p *parallel) rankWays() []syncWay {
	switch {
	case p.Zero > 0:
		return []syncWay{syncRanks}
	case p.Pipe > 0 || p.meshed():
		return syncWays()[:4]
	}
	return syncWays()[:6]
}

// validate returns an error that names the flags at fault. What a layout cannot be is for [job.plan] to say.
func (p *parallel) validate() error {
	if err := p.enough(); err != nil {
		return err
	}
	switch {
	case p.Sync != "" && !slices.Contains(syncWays(), p.Sync):
		return fmt.Errorf("--sync=%.40s: want one of %q", p.Sync, syncWays())
	case p.Zero < 0 || p.Zero > 3:
		return fmt.Errorf("--zero=%d: want a stage, 1 to 3, or 0 to shard nothing", p.Zero)
	case p.Accumulate < 1:
		return fmt.Errorf("--accumulate=%d: want at least 1", p.Accumulate)
	case p.Every < 1:
		return fmt.Errorf("--every=%d: want at least 1", p.Every)
	case p.Servers < 0 || p.Servers > p.Data:
		return fmt.Errorf("--servers=%d: want 1 to --data %d, or 0 for all", p.Servers, p.Data)
	case p.Prefetch < 0:
		return fmt.Errorf("--prefetch=%d: want at least 0", p.Prefetch)
	case p.Shards < 0 || p.Shards > 0 && !p.meshed() && p.Data%p.Shards != 0:
		return fmt.Errorf("--shards=%d: want a number that divides --data %d, or 0 for all", p.Shards, p.Data)
	case p.Every > 1 && (p.Sync == syncNaive || p.Sync == syncOverlap):
		return fmt.Errorf("--every=%d and --sync=%s: local SGD shares no gradients; leave one of them out", p.Every, p.Sync)
	case p.Pipe > 0 && p.Accumulate > 1:
		return fmt.Errorf("--accumulate and --pipe=%d, which has --microbatches for that: leave one of them out", p.Pipe)
	}
	for _, check := range []func() error{p.stray, p.validateSequence, p.validatePipe, p.ofWay} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// enough returns an error if there cannot be so many devices.
func (p *parallel) enough() error {
	for _, f := range []struct {
		flag         string
		value, least int
	}{{"data", p.Data, 1}, {"pipe", p.Pipe, 0}, {"tensor", p.Tensor, 0}, {"seq-parallel", p.SeqParallel, 0}, {"replicas", p.Replicas, 0}} {
		if f.value < f.least || f.value > xla.MaxDevices {
			return fmt.Errorf("--%s=%d: want %d to %d", f.flag, f.value, f.least, xla.MaxDevices)
		}
	}
	all := 1
	for _, n := range []int{p.Data, p.Pipe, p.Tensor, p.SeqParallel, p.Replicas} {
		all *= max(1, n)
	}
	if all > xla.MaxDevices {
		return fmt.Errorf("--data, --pipe, --tensor, --seq-parallel and --replicas multiply to %d devices: want at most %d in all", all, xla.MaxDevices)
	}
	return nil
}

// stray returns an error for a flag that was given without the one that it belongs to.
func (p *parallel) stray() error {
	const pipe, tensor, sequence = "there is no pipeline", "no devices share layers", "no devices share sequences"
	const addPipe, addTensor, addSequence = "--pipe, the number of its devices", "--tensor, at least 2", "--seq-parallel, at least 2"
	const whole, addZero = "each device holds everything", "--zero, 1 to 3"
	for _, f := range []struct {
		name, what, add string
		stray           bool
	}{
		{"prefetch", whole, addZero, p.Prefetch != 0 && p.Zero == 0},
		{"shards", whole, addZero, p.Shards != 0 && p.Zero == 0},
		{"schedule", pipe, addPipe, p.PipeSchedule != "" && p.Pipe == 0},
		{"schedule-file", pipe, addPipe, p.ScheduleText != "" && p.Pipe == 0},
		{"microbatches", pipe, addPipe, p.Microbatches != 0 && p.Pipe == 0},
		{"chunks", pipe, addPipe, p.Chunks != 0 && p.Pipe == 0},
		{"cut", pipe, addPipe, p.Cut != "" && p.Pipe == 0},
		{"recompute-stages", pipe, addPipe, p.RecomputeStages && p.Pipe == 0},
		{"tensor-sequence", tensor, addTensor, p.TensorSequence && p.Tensor == 0},
		{"tensor-overlap", "it cuts what that sends into chunks", "--tensor-sequence, with --tensor", p.TensorOverlap && !p.TensorSequence},
		{"tensor-partition", tensor, addTensor, p.TensorPartition && p.Tensor == 0},
		{"seq-method", sequence, addSequence, p.SeqMethod != "" && p.SeqParallel == 0},
		{"seq-ulysses", sequence, addSequence, p.SeqUlysses != 0 && p.SeqParallel == 0},
		{"seq-ranks", sequence, addSequence, p.SeqRanks && p.SeqParallel == 0},
		{"placement", sequence, addSequence, p.Placement != "" && p.SeqParallel == 0},
	} {
		if f.stray {
			return fmt.Errorf("--%s: %s: leave it out, or add %s", f.name, f.what, f.add)
		}
	}
	return nil
}

// ofWay returns an error for a flag that --sync does not have.
func (p *parallel) ofWay() error {
	var flag, what string
	switch {
	case p.Sync.Served():
		flag, what = p.beyond("data", "sync", "servers", "bucket-bytes", "accumulate"), "which has parameter servers"
	case p.Servers > 0:
		return fmt.Errorf("--servers=%d and --sync=%s, which has no servers: choose --sync %s or %s", p.Servers, p.Sync, syncServer, syncAsync)
	case p.Sync == syncAuto && p.Tensor > 0:
		flag, what = p.beyond("data", "sync", "tensor"), "which leaves it to the compiler what is sent when"
	case p.Sync == syncAuto:
		flag, what = p.beyond("data", "sync", "zero"), "which leaves it to the compiler what is sent when"
	case p.Sync == syncSPMD && p.Zero > 0:
		flag, what = p.beyond(append(shardedFlags, "shards")...), "which is one program and updates on the devices"
	case p.oneProgram():
		flag, what = p.beyond(programFlags...), "which is one program"
	}
	if flag != "" {
		return fmt.Errorf("--%s and --sync=%s, %s: leave one of them out, or choose --sync, one of %q", flag, p.Sync, what, p.rankWays())
	}
	return nil
}

// suits returns an error if a recipe cannot be trained that way. What a layout does not suit is for [job.plan] to say.
func (p *parallel) suits(r train.Recipe) error {
	switch {
	case p.Compress != "" && r.Policy().Reduce != dtypes.Float32:
		return fmt.Errorf("--compress-gradients=%s takes gradients that are summed in float32: choose --precision fp32 or bf16", p.Compress)
	case !p.Sync.Served():
		return nil
	case r.Clip > 0:
		return fmt.Errorf("--sync=%s: a server sees a part of the gradients only, and cannot clip all of them: leave out --clip", p.Sync)
	case r.Precision.StochasticUpdate:
		return fmt.Errorf("--sync=%s: a server does not round stochastically: leave out --stochastic-rounding", p.Sync)
	case r.Precision.Scaling != precision.Scaling{}:
		return fmt.Errorf("--sync=%s: there is no loss scale that all ranks agree on: choose --loss-scale none, or --precision bf16", p.Sync)
	}
	return nil
}

// byProcess is the number that the processes of --engine mpi say where nobody else does, and its flag: that of ranks with other rows.
func (p *parallel) byProcess() (flag string, n *int) {
	if p.meshed() {
		return "replicas", &p.Replicas
	}
	return "data", &p.Data
}
