package job

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/shardbook/shardbook/internal/flags"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/sequence"
)

// Parallel has the settings of parallelism; [Job.Layout] returns them as a layout. A resumed run may change them.
type Parallel struct {
	Data        int         `json:"data"`
	Sync        Sync        `json:"sync,omitempty"` // "" is one program on one device
	Accumulate  int         `json:"accumulate"`
	BucketBytes flags.Bytes `json:"bucket_bytes,omitempty"` // 0 is the library's default
	Every       int         `json:"every"`
	Servers     int         `json:"servers,omitempty"`            // 0 is one on each rank
	Compress    string      `json:"compress_gradients,omitempty"` // a hook of package ddp
	// replicas of the layout of the other flags; 0 means 1
	Replicas int `json:"replicas,omitempty"`

	Zero     int  `json:"zero,omitempty"` // the stage; 0 means no sharding
	Prefetch int  `json:"prefetch,omitempty"`
	Shards   int  `json:"shards,omitempty"` // 0 is one for each device
	Offload  bool `json:"offload_optimizer,omitempty"`

	Pipe            int           `json:"pipe,omitempty"` // ranks; 0 is no pipeline
	PipeSchedule    pipeline.Kind `json:"pipe_schedule,omitempty"`
	Microbatches    int           `json:"microbatches,omitempty"` // 0 means chosen by schedule and batch
	Chunks          int           `json:"chunks,omitempty"`       // 0 is the schedule's
	Cut             string        `json:"cut,omitempty"`
	RecomputeStages bool          `json:"recompute_stages,omitempty"`
	ScheduleText    string        `json:"pipe_schedule_text,omitempty"` // the schedule read from File
	File            string        `json:"-"`                            // to read it from

	// tensor-parallel devices; 0 means none
	Tensor          int                `json:"tensor,omitempty"`
	TensorSequence  bool               `json:"tensor_sequence,omitempty"`
	TensorOverlap   bool               `json:"tensor_overlap,omitempty"`
	TensorPartition bool               `json:"tensor_partition,omitempty"`
	Expert          int                `json:"expert_parallel,omitempty"` // devices with different experts; 0 means none
	SeqParallel     int                `json:"seq_parallel,omitempty"`    // sequence-parallel devices; 0 means none
	SeqMethod       string             `json:"seq_method,omitempty"`      // "" is ring
	SeqUlysses      int                `json:"seq_ulysses,omitempty"`     // of hybrid; 0 means chosen by heads
	SeqRanks        bool               `json:"seq_ranks,omitempty"`       // rings are of ranks
	Placement       sequence.Placement `json:"placement,omitempty"`       // "" is the method's

	DeviceMemory flags.Bytes `json:"-"` // limit for the estimated memory; 0 means none
}

// OneDevice is one device without any technique.
func OneDevice() Parallel { return Parallel{Data: 1, Accumulate: 1, Every: 1} }

// beyond returns the first flag whose value differs from that of one device, except the flags in but; "" if there is
// none.
func (p Parallel) beyond(but ...string) (flag string) {
	named := map[string]bool{}
	for _, name := range but {
		named[name] = true
	}
	one := OneDevice()
	own, default_ := pflag.NewFlagSet("", pflag.ContinueOnError), pflag.NewFlagSet("", pflag.ContinueOnError)
	p.flags(own)
	one.flags(default_)
	own.VisitAll(func(f *pflag.Flag) {
		if flag == "" && !named[f.Name] && f.Value.String() != default_.Lookup(f.Name).Value.String() {
			flag = f.Name
		}
	})
	return flag
}

// normalize replaces settings that mean one device by those without a technique.
func (p *Parallel) normalize() {
	p.Compress = strings.ToLower(p.Compress)
	p.Cut = strings.ToLower(strings.ReplaceAll(p.Cut, " ", ""))
	for _, n := range []*int{&p.Tensor, &p.SeqParallel, &p.Expert} {
		if *n == 1 {
			*n = 0
		}
	}
}

// resumed returns the parallelism of a resumed run: p, changed by the flags given now. Some changes reset settings that
// were for the old layout: another --zero preserves only --data and --accumulate; another --sync preserves these,
// --zero and --prefetch; other pipeline, tensor,
// sequence or expert parallelism preserves only --data.
func (p Parallel) resumed(given *pflag.FlagSet) (Parallel, error) {
	now, own := p, pflag.NewFlagSet("", pflag.ContinueOnError)
	now.flags(own)
	changed := func(name string) bool {
		return given.Changed(name) && given.Lookup(name).Value.String() != own.Lookup(name).Value.String()
	}
	zero, sync, file := changed("zero"), changed("sync"), given.Changed("schedule-file")
	layout := changed("pipe") || file || changed("tensor") || changed("seq-parallel") || changed("replicas") ||
		changed("expert-parallel")
	if changed("schedule") && given.Lookup("schedule").Value.String() != "" {
		now.ScheduleText = ""
	}
	if changed("seq-method") {
		now.SeqUlysses, now.SeqRanks, now.Placement = 0, false, ""
	}
	if layout || zero || sync {
		now = OneDevice()
		now.Data = p.Data
	}
	if (zero || sync) && !layout {
		now.Accumulate = p.Accumulate
	}
	if sync && !zero && !layout {
		now.Zero, now.Prefetch = p.Zero, p.Prefetch
	}
	var err error
	given.Visit(func(f *pflag.Flag) {
		if own.Lookup(f.Name) != nil && !(f.Name == "schedule" && f.Value.String() == "") {
			err = errors.Join(err, own.Set(f.Name, f.Value.String()))
		}
	})
	return now, err
}

// Sync is the method that synchronizes gradients.
type Sync string

const (
	Naive   = Sync(ddp.Naive) // those of package ddp
	Overlap = Sync(ddp.Overlap)
	Bucket  = Sync(ddp.Bucketed)
	Ranks   = Sync("ranks") // reduce each block's gradients as soon as they are computed
	Server  = Sync("ps")    // parameter servers, which wait for the gradients of all ranks
	Async   = Sync("async") // asynchronous parameter servers
	SPMD    = Sync("spmd")  // one program on all devices
	Auto    = Sync("auto")  // one program, which the compiler shards
)

func syncWays() []Sync { return []Sync{Naive, Overlap, Bucket, Ranks, Server, Async, SPMD, Auto} }

// Served reports whether there are parameter servers.
func (s Sync) Served() bool { return s == Server || s == Async }

// Flags of runs with one program, in general and for sharded state.
var (
	programFlags = []string{"data", "sync", "tensor", "tensor-sequence", "tensor-overlap", "seq-parallel", "seq-method",
		"seq-ulysses", "placement"}
	shardedFlags = []string{"data", "sync", "zero", "prefetch", "accumulate", "expert-parallel"}
)

// Choose sets Sync if no flag did, except for one device. ranks says that another flag needs a method with ranks.
func (p *Parallel) Choose(ranks bool) {
	switch {
	case p.Sync != "" || *p == OneDevice():
	case p.Sharing() && p.beyond(programFlags...) == "" && !ranks, p.Zero > 0 && p.beyond(shardedFlags...) == "" &&
		!ranks:
		p.Sync = SPMD
	default:
		p.chooseRanks()
	}
}

// chooseRanks sets Sync, if it is not set, to a method with ranks.
func (p *Parallel) chooseRanks() {
	switch {
	case p.Sync != "":
	case p.BucketBytes == 0 && (p.Zero > 0 || p.Pipe > 0 || p.meshed()):
		p.Sync = Ranks
	default:
		p.Sync = Bucket
	}
}

// Sharing reports whether there are tensor- or sequence-parallel devices.
func (p *Parallel) Sharing() bool { return p.Tensor != 0 || p.SeqParallel != 0 }

// meshed reports whether a rank drives all --data devices, so that --replicas is the number of data-parallel ranks;
// otherwise --data is.
func (p *Parallel) meshed() bool { return p.Replicas > 0 || p.Sharing() || p.Pipe > 0 && p.Zero > 0 }

// OneProgram reports whether all devices run one program; otherwise each rank has its own programs.
func (p *Parallel) OneProgram() bool { return p.Sync == "" || p.Sync == SPMD || p.Sync == Auto }

// Planned reports whether the run executes a layout's plan; otherwise it has parameter servers, or is one program of
// package train.
func (p *Parallel) Planned() bool {
	return !p.Sync.Served() && (!p.OneProgram() || p.Sync == SPMD && p.Zero > 0)
}

// RankWays lists the values of Sync with ranks, joined, for errors.
func (p *Parallel) RankWays() string {
	ways := syncWays()[:6]
	switch {
	case p.Zero > 0:
		ways = []Sync{Ranks}
	case p.Pipe > 0 || p.meshed():
		ways = ways[:4]
	}
	return flags.List(ways, ", ")
}

// checkSync returns an error for flags that do not fit Sync.
func (p *Parallel) checkSync() error {
	var flag, what string
	switch {
	case p.Sync.Served():
		flag, what = p.beyond("data", "sync", "servers", "bucket-bytes", "accumulate"), "which has parameter servers"
	case p.Servers > 0:
		return fmt.Errorf("--servers=%d and --sync=%s, which has no servers: choose --sync %s or %s", p.Servers, p.Sync,
			Server, Async)
	case p.Sync == Auto && p.Tensor > 0:
		flag, what = p.beyond("data", "sync", "tensor"), "which leaves communication to the compiler"
	case p.Sync == Auto:
		flag, what = p.beyond("data", "sync", "zero"), "which leaves communication to the compiler"
	case p.Sync == SPMD && p.Zero > 0:
		flag, what = p.beyond(append(shardedFlags, "shards")...), "which is one program and updates on the devices"
	case p.OneProgram():
		flag, what = p.beyond(programFlags...), "which is one program"
	}
	if flag != "" {
		return fmt.Errorf("--%s and --sync=%s, %s: leave one of them out, or choose --sync, one of %s", flag, p.Sync,
			what, p.RankWays())
	}
	return nil
}

// ByProcess returns the flag, and its number, that --engine mpi derives from the number of processes: the data-parallel
// ranks.
func (p *Parallel) ByProcess() (flag string, n *int) {
	if p.meshed() {
		return "replicas", &p.Replicas
	}
	return "data", &p.Data
}

// PerCopy returns the number of ranks with the same sequences: the ranks of a pipeline, of a ring, or both multiplied.
func (p *Parallel) PerCopy() int {
	n := max(1, p.Pipe)
	if p.SeqRanks {
		n *= max(1, p.SeqParallel) / max(1, p.SeqUlysses)
	}
	return n
}

// ForProcesses sets the number of data-parallel ranks for n processes with one rank each, and Sync to a method with
// ranks. given reports which flags were given; those that do not fit the processes are errors.
func (p *Parallel) ForProcesses(n int, given func(flag string) bool) error {
	flag, number := p.ByProcess()
	of := *number // processes divided by this number have the other flags' layout
	if flag == "replicas" {
		*number = max(1, of)
	}
	if p.Sync == SPMD || p.Sync == Auto {
		if given("sync") {
			return fmt.Errorf("--sync=%s runs one program in one process, not with --engine=mpi: choose "+
				"--sync, one of %s, or leave it out", p.Sync, p.RankWays())
		}
		p.Sync = "" // the value of the resumed run
	}
	p.chooseRanks()
	each, what := p.PerCopy(), "ranks"
	switch {
	case p.SeqRanks:
		what = fmt.Sprintf("groups of %d ranks that share sequences or blocks", each)
	case p.Pipe > 0:
		what = fmt.Sprintf("pipelines of --pipe=%d", each)
	}
	switch {
	case given(flag) && of*each == n:
	case given(flag):
		return fmt.Errorf("--%s=%d %s need %d processes, and there are %d: start %[4]d, or leave out --%[1]s", flag, of,
			what, of*each, n)
	case n%each != 0:
		return fmt.Errorf("%d processes are not a multiple of %s: start a multiple of %d", n, what, each)
	default:
		*number = n / each
	}
	return nil
}
