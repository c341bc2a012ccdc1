package job

import (
	"fmt"

	"github.com/shardbook/shardbook/internal/flags"
	"github.com/shardbook/shardbook/lib/ddp"
)

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
	shardedFlags = []string{"data", "sync", "zero", "prefetch", "accumulate"}
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
