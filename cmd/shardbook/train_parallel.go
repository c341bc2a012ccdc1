package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gomlx/compute/dtypes"
	"github.com/spf13/pflag"

	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/train"
)

// syncWay is how devices share what they learn.
type syncWay string

const (
	syncNaive   = syncWay(ddp.Naive) // those of package ddp's ranks
	syncOverlap = syncWay(ddp.Overlap)
	syncBucket  = syncWay(ddp.Bucketed)
	syncServer  = syncWay("ps")    // parameter servers, which wait for the gradients of all ranks
	syncAsync   = syncWay("async") // those that do not
	syncSPMD    = syncWay("spmd")  // one program on all devices
	syncAuto    = syncWay("auto")  // the same, and the compiler cuts it
	syncRanks   = syncWay("ranks") // those of package zero
)

// syncWays are those of ranks each of which computes with everything.
func syncWays() []syncWay {
	return []syncWay{syncNaive, syncOverlap, syncBucket, syncServer, syncAsync}
}

// Served says whether there are parameter servers.
func (s syncWay) Served() bool { return s == syncServer || s == syncAsync }

// parallel is the part of a job that says how devices share it. A run may go on in another way.
type parallel struct {
	Data        int       `json:"data"`
	Sync        syncWay   `json:"sync,omitempty"` // "" is one program on one device
	Accumulate  int       `json:"accumulate"`
	BucketBytes byteCount `json:"bucket_bytes,omitempty"` // 0 is the library's default
	Every       int       `json:"every"`
	Servers     int       `json:"servers,omitempty"`            // 0 is one on each rank
	Compress    string    `json:"compress_gradients,omitempty"` // on their way
	zeroSettings
	pipeSettings
	shareSettings
	layoutSettings
}

// alone is one device.
func alone() parallel { return parallel{Data: 1, Accumulate: 1, Every: 1} }

func (p *parallel) flags(f *pflag.FlagSet) {
	f.IntVar(&p.Data, "data", p.Data, "devices that train together, each on its part of every batch; with --pipe, pipelines; with --tensor and --seq-parallel, groups of devices")
	f.StringVar((*string)(&p.Sync), "sync", string(p.Sync), syncUsage)
	f.IntVar(&p.Accumulate, "accumulate", p.Accumulate, "micro-batches, one after another, into which each rank's part of a batch is divided: for less memory, the same result but for rounding")
	f.Var(&p.BucketBytes, "bucket-bytes", fmt.Sprintf("largest bucket of gradients, as 8e6 or 8MB (default %gMB)", ddp.DefaultBucketBytes/1e6))
	f.IntVar(&p.Every, "every", p.Every, "steps between the ranks' averages; more than 1 is local SGD, which averages what was trained and no gradients")
	f.IntVar(&p.Servers, "servers", p.Servers, "with --sync ps and async, the ranks that have a parameter server (default all)")
	f.StringVar(&p.Compress, "compress-gradients", p.Compress, "how gradients are compressed on their way: bf16, topk:SHARE or powersgd:RANK (default not); what is kept back for later steps is not in checkpoints")
	p.zeroSettings.flags(f)
	p.pipeSettings.flags(f)
	p.shareSettings.flags(f)
	p.layoutSettings.flags(f)
}

const syncUsage = "how devices share what they learn. Ranks with programs of their own: naive (an all-reduce for each gradient, after the " +
	"backward pass), overlap (each as soon as it is there), bucket (overlap, with gradients in buckets), ps (parameter servers) or async (the " +
	"same without waiting, for which no run is like another). One program for all devices: spmd (an all-reduce in it) or auto (the compiler " +
	"puts it in). With --zero it is spmd, auto or ranks, with --pipe ranks, with --tensor spmd or auto, and with --seq-parallel spmd. (default bucket; with " +
	"--zero, --tensor and --seq-parallel spmd, or ranks where only they will do; for one device and none of the flags of ranks, one program)"

// normalize gives the way its one name.
func (p *parallel) normalize() {
	p.Sync, p.Compress = syncWay(strings.ToLower(string(p.Sync))), strings.ToLower(p.Compress)
	p.pipeSettings.normalize()
	p.shareSettings.normalize()
}

// choose takes a way where none is named. traced says that something is asked for that only ranks have.
func (p *parallel) choose(traced bool) {
	switch {
	case p.Sync != "" || *p == alone():
	case p.composed() || p.Pipe > 0:
		p.Sync = p.rankWay()
	case p.sharing() != "" || p.Zero > 0 && !traced && p.Shards == 0 && !p.Offload:
		p.Sync = syncSPMD
	default:
		p.Sync = p.rankWay()
	}
}

// oneProgram says that all devices run one program, and not ranks their own.
func (p *parallel) oneProgram() bool { return !slices.Contains(p.rankWays(), p.Sync) }

// rankWay is the way of ranks where none is named.
func (p *parallel) rankWay() syncWay {
	if p.Zero > 0 || p.Pipe > 0 || p.composed() {
		return syncRanks
	}
	return syncBucket
}

// rankWays are the ways of ranks that there are.
func (p *parallel) rankWays() []syncWay {
	if p.rankWay() == syncRanks {
		return []syncWay{syncRanks}
	}
	return syncWays()
}

// resumed returns how devices go on with a run that they shared as p says, for the flags that are given now. Another --zero
// leaves only --data and --accumulate as they were, another --sync these, --zero and --prefetch, and another pipeline and other
// devices that share layers or sequences only --data: the rest was for the old way.
func (p parallel) resumed(given *pflag.FlagSet) (parallel, error) {
	now, flags := p, pflag.NewFlagSet("", pflag.ContinueOnError)
	now.flags(flags)
	other := func(name string) bool {
		return given.Changed(name) && given.Lookup(name).Value.String() != flags.Lookup(name).Value.String()
	}
	zero, sync, file := other("zero"), other("sync"), given.Changed("schedule-file")
	only := other("pipe") || file || other("tensor") || other("seq-parallel") || other("replicas")
	if other(pipelineFlag) {
		now.ScheduleText = ""
	}
	if other("seq-method") {
		now.SeqUlysses, now.Placement = 0, ""
	}
	if only || zero || sync {
		now = alone()
		now.Data = p.Data
	}
	if (zero || sync) && !only {
		now.Accumulate = p.Accumulate
	}
	if sync && !zero && !only {
		now.Zero, now.Prefetch = p.Zero, p.Prefetch
	}
	var err error
	given.Visit(func(f *pflag.Flag) {
		if flags.Lookup(f.Name) != nil {
			err = errors.Join(err, flags.Set(f.Name, f.Value.String()))
		}
	})
	return now, err
}

// validate returns an error that names the flags at fault.
func (p *parallel) validate(batch int) error {
	if err := p.enough(); err != nil {
		return err
	}
	switch {
	case p.Zero < 0 || p.Zero > 3:
		return fmt.Errorf("--zero=%d: want a stage, 1 to 3, or 0 to shard nothing", p.Zero)
	case p.Accumulate < 1:
		return fmt.Errorf("--accumulate=%d: want at least 1", p.Accumulate)
	case p.Every < 1:
		return fmt.Errorf("--every=%d: want at least 1", p.Every)
	case p.Servers < 0 || p.Servers > p.Data:
		return fmt.Errorf("--servers=%d: want 1 to --data %d, or 0 for all", p.Servers, p.Data)
	}
	if err := p.stray(); err != nil {
		return err
	}
	if p.composed() {
		return p.validateComposed(batch)
	}
	if p.Replicas != 0 || p.DeviceMemory != 0 {
		return fmt.Errorf("--replicas and --device-memory are for layouts of several of --pipe, --zero, --tensor and --seq-parallel: leave them out; " +
			"--data is for devices with other rows, and shardbook estimate says what they need")
	}
	if p.sharing() != "" {
		return p.validateShared(batch)
	}
	if p.Pipe > 0 {
		return p.validatePipe(batch)
	}
	if flag := p.pipeSettings.given(); flag != "" {
		return fmt.Errorf("--%s: there is no pipeline: leave it out, or add --pipe, the number of its devices", flag)
	}
	check := p.validateWhole
	if p.Zero > 0 {
		check = p.validateZero
	}
	if err := check(); err != nil {
		return err
	}
	if batch%p.Data != 0 || batch/p.Data%p.Accumulate != 0 {
		return fmt.Errorf("--batch=%d cannot be divided into equal parts for --data %d with --accumulate %d each: choose a multiple of their product",
			batch, p.Data, p.Accumulate)
	}
	return nil
}

// validateWhole is validate where each device holds everything.
func (p *parallel) validateWhole() error {
	if flag := p.zeroSettings.given(); flag != "" {
		return fmt.Errorf("--%s: each device holds everything: leave it out, or add --zero, 1 to 3", flag)
	}
	ways := append(syncWays(), syncSPMD, syncAuto)
	shared := parallel{Data: p.Data, Sync: p.Sync, Accumulate: 1, Every: 1}
	switch {
	case p.Sync == syncRanks:
		return fmt.Errorf("--sync=%s is for --zero, 1 to 3, and --pipe: add one of them, or choose one of %q", p.Sync, ways)
	case p.Sync != "" && !slices.Contains(ways, p.Sync):
		return fmt.Errorf("--sync=%s: want one of %q", p.Sync, ways)
	case p.oneProgram() && *p != shared:
		return fmt.Errorf("--sync=%s is one program, which has no micro-batches, buckets or servers: leave out --accumulate, --bucket-bytes, "+
			"--every, --servers and --compress-gradients, or choose one of %q", p.Sync, syncWays())
	case p.BucketBytes > 0 && (p.Sync == syncNaive || p.Sync == syncOverlap):
		return fmt.Errorf("--bucket-bytes=%d and --sync=%s, which has a bucket for each parameter: leave one of them out", p.BucketBytes, p.Sync)
	case p.Every > 1 && p.Sync != syncBucket:
		return fmt.Errorf("--every=%d and --sync=%s: local SGD shares no gradients; leave one of them out", p.Every, p.Sync)
	case p.Compress != "" && (p.Every > 1 || p.Sync.Served()):
		return fmt.Errorf("--compress-gradients=%s: there is no all-reduce to compress with --every %d and --sync %s", p.Compress, p.Every, p.Sync)
	case p.Servers > 0 && !p.Sync.Served():
		return fmt.Errorf("--servers=%d and --sync=%s, which has no servers: choose --sync %s or %s", p.Servers, p.Sync, syncServer, syncAsync)
	}
	_, err := p.options()
	return err
}

// suits returns an error if a recipe cannot be trained that way.
func (p *parallel) suits(r train.Recipe) error {
	scales, way := r.Precision.Scaling != precision.Scaling{}, fmt.Sprintf("--sync=%s", p.Sync)
	if p.Every > 1 {
		way = fmt.Sprintf("--every=%d", p.Every)
	}
	switch {
	case p.Sync.Served() && r.Clip > 0:
		return fmt.Errorf("%s: a server sees a part of the gradients only, and cannot clip all of them: leave out --clip", way)
	case p.Sync.Served() && r.Precision.StochasticUpdate:
		return fmt.Errorf("%s: a server does not round stochastically: leave out --stochastic-rounding", way)
	case p.Compress != "" && r.Policy().Reduce != dtypes.Float32:
		return fmt.Errorf("--compress-gradients=%s takes gradients that are summed in float32: choose --precision fp32 or bf16", p.Compress)
	case (p.Sync.Served() || p.Every > 1) && scales:
		return fmt.Errorf("%s: there is no loss scale that all ranks agree on: choose --loss-scale none, or --precision bf16", way)
	}
	return nil
}

// options are those of the ranks, but for parameter servers.
func (p *parallel) options() (ddp.Options, error) {
	o := ddp.Options{Sync: ddp.Sync(p.Sync), BucketBytes: int64(p.BucketBytes), Accumulate: p.Accumulate, Every: p.Every}
	if p.Compress != "" {
		var err error
		if o.Hook, err = ddp.ParseHook(p.Compress); err != nil {
			return o, fmt.Errorf("--compress-gradients: %w", err)
		}
	}
	return o, nil
}

// byteCount is a flag for a number of bytes as people write it; 0 is not given.
type byteCount int64

func (b *byteCount) Set(text string) error {
	n, err := amount(text).bytes("", 1)
	if err != nil {
		return errors.New("want bytes, at least 1, as 25000000, 25e6, 25MB or 25MiB")
	}
	*b = byteCount(n)
	return nil
}

func (b *byteCount) String() string { return strconv.FormatInt(int64(*b), 10) }

func (b *byteCount) Type() string { return "bytes" }
