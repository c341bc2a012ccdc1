package job

import (
	"errors"
	"strings"

	"github.com/spf13/pflag"

	"github.com/shardbook/shardbook/internal/flags"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/sequence"
)

// Parallel is the part of a job that says how devices share it: [Job.Layout] makes it a layout. A run may be resumed
// with another.
type Parallel struct {
	Data        int         `json:"data"`
	Sync        Sync        `json:"sync,omitempty"` // "" is one program on one device
	Accumulate  int         `json:"accumulate"`
	BucketBytes flags.Bytes `json:"bucket_bytes,omitempty"` // 0 is the library's default
	Every       int         `json:"every"`
	Servers     int         `json:"servers,omitempty"`            // 0 is one on each rank
	Compress    string      `json:"compress_gradients,omitempty"` // a hook of package ddp
	Replicas    int         `json:"replicas,omitempty"`           // of all that the other flags say; 0 is 1

	Zero     int  `json:"zero,omitempty"` // the stage; 0 shards nothing
	Prefetch int  `json:"prefetch,omitempty"`
	Shards   int  `json:"shards,omitempty"` // 0 is one for each device
	Offload  bool `json:"offload_optimizer,omitempty"`

	Pipe            int           `json:"pipe,omitempty"` // ranks; 0 is no pipeline
	PipeSchedule    pipeline.Kind `json:"pipe_schedule,omitempty"`
	Microbatches    int           `json:"microbatches,omitempty"` // 0 is for the schedule and the batch to say
	Chunks          int           `json:"chunks,omitempty"`       // 0 is the schedule's
	Cut             string        `json:"cut,omitempty"`
	RecomputeStages bool          `json:"recompute_stages,omitempty"`
	ScheduleText    string        `json:"pipe_schedule_text,omitempty"` // of a schedule that was read from a file
	File            string        `json:"-"`                            // to read it from

	// tensor-parallel devices; 0 is none, and 1 is written so
	Tensor          int                `json:"tensor,omitempty"`
	TensorSequence  bool               `json:"tensor_sequence,omitempty"`
	TensorOverlap   bool               `json:"tensor_overlap,omitempty"`
	TensorPartition bool               `json:"tensor_partition,omitempty"`
	SeqParallel     int                `json:"seq_parallel,omitempty"` // sequence-parallel devices; as Tensor
	SeqMethod       string             `json:"seq_method,omitempty"`   // "" is ring
	SeqUlysses      int                `json:"seq_ulysses,omitempty"`  // of hybrid; 0 is for the heads to say
	SeqRanks        bool               `json:"seq_ranks,omitempty"`    // rings are of ranks
	Placement       sequence.Placement `json:"placement,omitempty"`    // "" is the method's

	DeviceMemory flags.Bytes `json:"-"` // which a layout must fit by the estimate; 0 is any
}

// OneDevice is one device without any technique.
func OneDevice() Parallel { return Parallel{Data: 1, Accumulate: 1, Every: 1} }

// beyond is the first flag by which the settings are other than one device's, but for the flags that are named; "" is
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

// normalize gives what has several names one: no technique has one device.
func (p *Parallel) normalize() {
	p.Compress = strings.ToLower(p.Compress)
	p.Cut = strings.ToLower(strings.ReplaceAll(p.Cut, " ", ""))
	for _, n := range []*int{&p.Tensor, &p.SeqParallel} {
		if *n == 1 {
			*n = 0
		}
	}
}

// resumed returns how devices continue a run that they shared as p says, for the flags that are given now. Of what p
// says, another --zero leaves only --data and --accumulate, another --sync these, --zero and --prefetch, and another
// pipeline or other tensor- or sequence-parallel devices only --data: the rest was for the old layout.
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
