package job

import (
	"errors"
	"strings"

	"github.com/spf13/pflag"

	"github.com/shardbook/shardbook/internal/flags"
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
	SeqParallel     int                `json:"seq_parallel,omitempty"` // sequence-parallel devices; 0 means none
	SeqMethod       string             `json:"seq_method,omitempty"`   // "" is ring
	SeqUlysses      int                `json:"seq_ulysses,omitempty"`  // of hybrid; 0 means chosen by heads
	SeqRanks        bool               `json:"seq_ranks,omitempty"`    // rings are of ranks
	Placement       sequence.Placement `json:"placement,omitempty"`    // "" is the method's

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
	for _, n := range []*int{&p.Tensor, &p.SeqParallel} {
		if *n == 1 {
			*n = 0
		}
	}
}

// resumed returns the parallelism of a resumed run: p, changed by the flags given now. Some changes reset settings that
// were for the old layout: another --zero preserves only --data and --accumulate; another --sync preserves these,
// --zero and --prefetch; other pipeline, tensor or sequence parallelism preserves only --data.
func (p Parallel) resumed(given *pflag.FlagSet) (Parallel, error) {
	now, own := p, pflag.NewFlagSet("", pflag.ContinueOnError)
	now.flags(own)
	changed := func(name string) bool {
		return given.Changed(name) && given.Lookup(name).Value.String() != own.Lookup(name).Value.String()
	}
	zero, sync, file := changed("zero"), changed("sync"), given.Changed("schedule-file")
	layout := changed("pipe") || file || changed("tensor") || changed("seq-parallel") || changed("replicas")
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
