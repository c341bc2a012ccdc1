package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/sequence"
)

// parallel is the part of a job that says how devices share it. A run may go on in another way. [job.layout] makes it a layout.
type parallel struct {
	Data        int       `json:"data"`
	Sync        syncWay   `json:"sync,omitempty"` // "" is one program on one device
	Accumulate  int       `json:"accumulate"`
	BucketBytes byteCount `json:"bucket_bytes,omitempty"` // 0 is the library's default
	Every       int       `json:"every"`
	Servers     int       `json:"servers,omitempty"`            // 0 is one on each rank
	Compress    string    `json:"compress_gradients,omitempty"` // on their way
	Replicas    int       `json:"replicas,omitempty"`           // of all that the other flags say; 0 is 1

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
	file            string        // to read it from

	Tensor          int                `json:"tensor,omitempty"` // devices that share layers; 0 is none, and 1 is written so
	TensorSequence  bool               `json:"tensor_sequence,omitempty"`
	TensorOverlap   bool               `json:"tensor_overlap,omitempty"`
	TensorPartition bool               `json:"tensor_partition,omitempty"`
	SeqParallel     int                `json:"seq_parallel,omitempty"` // devices that share sequences; as Tensor
	SeqMethod       string             `json:"seq_method,omitempty"`   // "" is seqRing
	SeqUlysses      int                `json:"seq_ulysses,omitempty"`  // of seqHybrid; 0 is for the heads to say
	SeqRanks        bool               `json:"seq_ranks,omitempty"`    // rings are of ranks
	Placement       sequence.Placement `json:"placement,omitempty"`    // "" is the method's

	DeviceMemory byteCount `json:"-"` // which a layout must fit by the estimate; 0 is any
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
	f.IntVar(&p.Replicas, "replicas", p.Replicas, "how many times all that the other flags say is there, each with its part of every batch; "+
		"gradients go between them by messages, and ZeRO shards over them where --data is 1 (default 1; with --engine mpi, as many as there are processes for)")
	f.Var(&p.DeviceMemory, "device-memory", "bytes of a device, as 80GB: what needs more by the estimate is refused (default any)")

	f.IntVar(&p.Zero, "zero", p.Zero, "ZeRO stage: 1 shards optimizer states between devices, 2 gradients too, 3 parameters too (FSDP); 0 nothing")
	f.IntVar(&p.Prefetch, "prefetch", p.Prefetch, "with --zero 3, blocks ahead of their use that parameters are gathered")
	f.IntVar(&p.Shards, "shards", p.Shards, "with --zero, neighbouring devices that share one copy of the state: hybrid sharding (default all)")
	f.BoolVar(&p.Offload, "offload-optimizer", p.Offload, "optimizer states and master copy in host memory, and updates there (with --zero: ZeRO-Offload)")

	f.IntVar(&p.Pipe, "pipe", p.Pipe, "devices of a pipeline, each of which has some of the model's blocks; 0 is no pipeline")
	f.StringVar((*string)(&p.PipeSchedule), pipelineFlag, string(p.PipeSchedule), "see --schedule")
	f.StringVar(&p.file, "schedule-file", p.file, "in place of --schedule, a file that has one, "+
		"as CSV (see shardbook schedule) or in this project's text")
	f.IntVar(&p.Microbatches, "microbatches", p.Microbatches, "with --pipe, micro-batches of a step in each pipeline "+
		"(default the smallest number that is at least twice --pipe, divides its rows of a batch and suits the schedule; else the largest below)")
	f.IntVar(&p.Chunks, "chunks", p.Chunks, "with --pipe, stages that a device has, of the schedules that let one choose (default 2)")
	f.StringVar(&p.Cut, "cut", p.Cut, fmt.Sprintf("with --pipe, how many blocks each stage has, the embedding and the head among them, "+
		"as 3,2,1; or %s; or %s, for stages that take about equally long on a device (default %[1]s)", cutEven, cutMeasured))
	f.BoolVar(&p.RecomputeStages, "recompute-stages", p.RecomputeStages, "with --pipe, save of each micro-batch only the inputs of stages, "+
		"and recompute stages in the backward pass")

	f.IntVar(&p.Tensor, "tensor", p.Tensor, "devices that share each layer: tensor parallelism; 0 or 1 is none")
	f.BoolVar(&p.TensorSequence, "tensor-sequence", p.TensorSequence, "with --tensor, between the shared layers each device has its part of the tokens "+
		"(Megatron's sequence parallelism): less memory for activations, and as many bytes sent")
	f.BoolVar(&p.TensorOverlap, "tensor-overlap", p.TensorOverlap, "with --tensor-sequence, send in chunks, so that one can travel while another is multiplied")
	f.BoolVar(&p.TensorPartition, "tensor-partition", p.TensorPartition, "with --tensor, save only the inputs of blocks, each device a part of them, "+
		"and recompute the rest (ZeRO-R's partitioned activations)")
	f.IntVar(&p.SeqParallel, "seq-parallel", p.SeqParallel, "devices that share each sequence: sequence, or context, parallelism; 0 or 1 is none")
	f.StringVar(&p.SeqMethod, "seq-method", p.SeqMethod, "with --seq-parallel, how attention sees all tokens: ulysses (all-to-alls exchange heads for tokens), "+
		"ring (keys and values go around), allgather (they are gathered) or hybrid (rings of groups of ulysses) (default ring)")
	f.IntVar(&p.SeqUlysses, "seq-ulysses", p.SeqUlysses, "with --seq-method hybrid, devices of a group of ulysses "+
		"(default the largest number below --seq-parallel that divides it and a device's key/value heads, of which --tensor leaves it a part)")
	f.BoolVar(&p.SeqRanks, "seq-ranks", p.SeqRanks, "with --seq-method ring and hybrid, keys and values go from rank to rank, "+
		"and so from host to host; a rank then has the devices of a group of ulysses")
	f.StringVar((*string)(&p.Placement), "placement", string(p.Placement), "with --seq-parallel, which tokens of a sequence a device has: contiguous, "+
		"striped or zigzag (default zigzag, with which causal attention is as much work for each; ulysses has contiguous alone)")
}

// beyond is the first flag by which the settings are other than one device's, but for the flags that are named; "" is none.
func (p *parallel) beyond(but ...string) (flag string) {
	named := map[string]bool{}
	for _, name := range but {
		named[name] = true
	}
	own, one := *p, alone()
	given, default_ := pflag.NewFlagSet("", pflag.ContinueOnError), pflag.NewFlagSet("", pflag.ContinueOnError)
	own.flags(given)
	one.flags(default_)
	given.VisitAll(func(f *pflag.Flag) {
		if flag == "" && !named[f.Name] && f.Value.String() != default_.Lookup(f.Name).Value.String() {
			flag = strings.TrimPrefix(f.Name, "pipe-")
		}
	})
	return flag
}

// normalize gives what has several names one, and one device by itself, which shares nothing, its one number.
func (p *parallel) normalize() {
	p.Sync, p.Compress, p.SeqMethod = syncWay(strings.ToLower(string(p.Sync))), strings.ToLower(p.Compress), strings.ToLower(p.SeqMethod)
	p.PipeSchedule = pipeline.Kind(strings.ToLower(string(p.PipeSchedule)))
	p.Cut = strings.ToLower(strings.ReplaceAll(p.Cut, " ", ""))
	p.Placement = sequence.Placement(strings.ToLower(string(p.Placement)))
	for _, n := range []*int{&p.Tensor, &p.SeqParallel} {
		if *n == 1 {
			*n = 0
		}
	}
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
		now.SeqUlysses, now.SeqRanks, now.Placement = 0, false, ""
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
