package parallel

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/offload"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/sequence"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/tensor"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// The mesh axes of a rank's devices, beside [train.Axis].
const (
	Ring    = "ring"
	Ulysses = "ulysses"
	Tensor  = "tensor"
)

// Layout says how devices train one model: how many there are of each kind of parallelism, and what each device holds. A
// number that is 0 is 1.
//
// Replicas × Pipe ranks train together, and each drives Data × Ring × Ulysses × Tensor devices by programs of its own.
// Devices of a rank communicate by collectives in these programs, ranks by messages of a group, which may go from host to
// host. With RingRanks the ring is of ranks: Replicas × Ring × Pipe of them.
type Layout struct {
	// Replicas is data parallelism between ranks: how many pipelines train side by side, each with its part of the batch.
	// ZeRO shards over them where a rank has no devices of its own to shard over; else each has a copy of what these
	// shard (hybrid sharding; Zhao et al. 2023, "PyTorch FSDP", §3.2.2).
	Replicas int `json:"replicas,omitempty"`
	// Pipe is pipeline parallelism: how many ranks the blocks of the model are spread over.
	Pipe int `json:"pipe,omitempty"`
	// Data is data parallelism within a rank: how many of its devices have different sequences of the batch.
	Data int `json:"data,omitempty"`
	// Ring and Ulysses are sequence (context) parallelism: how many devices have parts of each sequence, by ring attention,
	// by all-to-alls, or by both (see package sequence).
	Ring    int `json:"ring,omitempty"`
	Ulysses int `json:"ulysses,omitempty"`
	// RingRanks makes the ring one of ranks, which may be on different hosts, with Ulysses between the devices of a rank
	// (the hybrid of Fang and Zhao 2024, "USP"). A pass is then several programs, between which keys and values are sent.
	// ZeRO shards over the ranks of a ring as over replicas.
	RingRanks bool `json:"ring_ranks,omitempty"`
	// Tensor is tensor parallelism: how many devices have shards of each layer.
	Tensor int `json:"tensor,omitempty"`
	// TensorSequence has them shard the activations between layers as well, by token (Korthikanti et al. 2022, §4.2.2).
	TensorSequence bool `json:"tensor_sequence,omitempty"`

	// ZeRO is the stage: data- and sequence-parallel devices of a rank shard optimizer states (1), also gradients (2),
	// also parameters (3) (Rajbhandari et al. 2020, §5).
	ZeRO int `json:"zero,omitempty"`
	// Prefetch is how many passes ahead of its use a block's parameters are gathered, in stage 3.
	Prefetch int `json:"prefetch,omitempty"`
	// Shards is how many neighbouring replicas have one copy of the state together, where ZeRO shards over replicas; 0 is
	// all.
	Shards int `json:"shards,omitempty"`

	// Schedule is the order of the micro-batches' passes; "" is 1F1B. Those with a backward pass in two parts gather in
	// both. Those that update while micro-batches are under way (Kind.Synchronous is false) are for
	// ranks of one device, and go with Replicas, Recompute and Cut alone. Chunks is how many stages each rank has, where
	// it has several.
	Schedule pipeline.Kind `json:"schedule,omitempty"`
	Chunks   int           `json:"chunks,omitempty"`
	// Plan is a schedule of one's own in the place of Schedule, Chunks, Microbatches and Pipe, which are then its own.
	// Its blocks are the stages.
	Plan *step.Plan `json:"-"`
	// Microbatches is how many micro-batches a rank's sequences of a batch are divided into; 0 is as many as Pipe.
	Microbatches int `json:"microbatches,omitempty"`
	// Cut is how many blocks of the model each stage has; nil is pipeline.Even.
	Cut []int `json:"cut,omitempty"`
	// Recompute keeps of a micro-batch only the input of a stage between the passes.
	Recompute bool `json:"recompute,omitempty"`
	// Partition saves of a micro-batch only the inputs of blocks, and of these on each tensor-parallel device only a
	// part (ZeRO-R's P_a, Rajbhandari et al. 2020, §6.1).
	Partition bool `json:"partition,omitempty"`
	// Offload is what lies in the host's memory, or is done there. Updates are for ranks of one device.
	Offload offload.Host `json:"offload,omitzero"`

	// Sync and BucketBytes are those of ddp.Options: when gradients are reduced, and in which pieces. "" is those of
	// each block as soon as they are there.
	Sync        ddp.Sync `json:"sync,omitempty"`
	BucketBytes int64    `json:"bucket_bytes,omitempty"`
	// EachMicroBatch, SumLoss, Every (local SGD, between replicas) and Hook (between replicas) are those of
	// ddp.Options, too.
	EachMicroBatch bool            `json:"each_microbatch,omitempty"`
	SumLoss        bool            `json:"sum_loss,omitempty"`
	Every          int             `json:"every,omitempty"`
	Hook           func() ddp.Hook `json:"-"`

	// Hosts is how many machines the ranks are dealt to, in their order, the same number to each: the ranks of a
	// pipeline are neighbours. A rank's own devices are always on one host.
	Hosts int `json:"hosts,omitempty"`
}

// withDefaults sets what was left at zero.
func (l Layout) withDefaults() Layout {
	if l.Plan != nil {
		l.Pipe, l.Microbatches, l.Chunks, l.Schedule = len(l.Plan.Ranks), l.Plan.Micro, l.Plan.Chunks(),
			pipeline.Kind(l.Plan.Name)
	}
	for _, n := range []*int{&l.Replicas, &l.Pipe, &l.Data, &l.Ring, &l.Ulysses, &l.Tensor, &l.Hosts} {
		*n = cmp.Or(*n, 1)
	}
	l.Microbatches = cmp.Or(l.Microbatches, l.Pipe)
	l.Schedule = cmp.Or(l.Schedule, pipeline.Kind1F1B)
	if l.Chunks == 0 {
		if l.Chunks = 1; l.Schedule.Chunked() {
			l.Chunks = 2
		}
	}
	return l
}

// Ranks is how many ranks train together, PerRank how many devices each drives, and Devices how many there are.
func (l Layout) Ranks() int   { return l.copies() * l.withDefaults().Pipe }
func (l Layout) PerRank() int { return l.shards() * l.withDefaults().Tensor }
func (l Layout) Devices() int { return l.Ranks() * l.PerRank() }

// ring is how many of a rank's devices are along the ring.
func (l Layout) ring() int {
	if l.RingRanks {
		return 1
	}
	return l.withDefaults().Ring
}

// copies is how many pipelines have different sequences or tokens.
func (l Layout) copies() int {
	l = l.withDefaults()
	return l.Replicas * l.Ring / l.ring()
}

// shards is how many of a rank's devices have the same parameters.
func (l Layout) shards() int {
	l = l.withDefaults()
	return l.Data * l.ring() * l.Ulysses
}

// Between lists what goes between hosts, by its name in [Layout.Traffic]: [BetweenRanks] for the gradients of replicas,
// [BetweenStages] for activations.
func (l Layout) Between() (axes []string) {
	l = l.withDefaults()
	each := l.Ranks() / l.Hosts
	if l.Hosts > 1 && l.copies() > max(1, l.Shards) {
		axes = append(axes, BetweenRanks)
	}
	if l.RingRanks && each%(l.Ring*l.Pipe) != 0 {
		axes = append(axes, Ring)
	}
	if l.Shards > 0 && l.Shards*l.Pipe > each {
		axes = append(axes, BetweenShards)
	}
	if each%l.Pipe != 0 {
		axes = append(axes, BetweenStages)
	}
	return axes
}

// Validate returns an error that names the first field which is not valid, with its value and what to do.
func (l Layout) Validate() error {
	for _, f := range []struct {
		name  string
		value int
	}{
		{"Replicas", l.Replicas}, {"Pipe", l.Pipe}, {"Data", l.Data}, {"Ring", l.Ring}, {"Ulysses", l.Ulysses},
		{"Tensor", l.Tensor},
		{"Chunks", l.Chunks}, {"Microbatches", l.Microbatches}, {"Hosts", l.Hosts}, {"ZeRO", l.ZeRO},
		{"Prefetch", l.Prefetch},
		{"Shards", l.Shards},
	} {
		if f.value < 0 || f.value > 1<<20 {
			return fmt.Errorf("parallel: Layout.%s is %d: set it to at least 1, or to 0 for the default", f.name,
				f.value)
		}
	}
	l = l.withDefaults()
	switch {
	case l.ZeRO > 3:
		return fmt.Errorf("parallel: Layout.ZeRO is %d: choose a stage from 0 to 3", l.ZeRO)
	case l.Prefetch > 0 && l.ZeRO < 3:
		return fmt.Errorf("parallel: Layout.Prefetch is %d in stage %d of ZeRO, whose parameters are there "+
			"already: leave it 0", l.Prefetch, l.ZeRO)
	case l.TensorSequence && l.Tensor == 1:
		return errors.New("parallel: Layout.TensorSequence is set and Layout.Tensor is 1: leave it out")
	case l.Shards > 0 && (l.ZeRO == 0 || l.shards() > 1 || l.copies()%l.Shards != 0):
		return fmt.Errorf("parallel: Layout.Shards is %d, with ZeRO=%d, %d replicas and %d devices of a rank that "+
			"shard its state: choose a divisor of the replicas, for ZeRO over ranks of one device, or "+
			"0", l.Shards, l.ZeRO,
			l.copies(), l.shards())
	case l.RingRanks && l.Ring == 1:
		return errors.New("parallel: Layout.RingRanks is set and Ring is 1: set Ring to the number of ranks, or leave " +
			"it out")
	case l.RingRanks && l.Every > 1:
		return fmt.Errorf("parallel: Layout.RingRanks is set and Every is %d: the ranks of a ring have the gradients "+
			"of one "+
			"batch, which is averaged each time; leave one of them out", l.Every)
	case l.Partition && (l.Tensor == 1 || l.TensorSequence || l.Recompute):
		return fmt.Errorf("parallel: Layout.Partition is set, with Tensor=%d, TensorSequence=%v and Recompute=%v: it "+
			"is for devices that "+
			"are tensor-parallel and have full activations between layers, and recomputes block by block", l.Tensor,
			l.TensorSequence, l.Recompute)
	case l.Partition && l.Offload.Activations:
		return errors.New("parallel: Layout.Partition and Offload.Activations are set: in the host's memory there is " +
			"one copy of an input for all tensor-parallel devices, so leave Partition out")
	case l.Ranks()%l.Hosts != 0:
		return fmt.Errorf("parallel: Layout.Hosts is %d, and there are %d ranks: choose a number that divides them",
			l.Hosts, l.Ranks())
	}
	if err := errors.Join(l.Offload.Validate(), l.validateGradients()); err != nil {
		return err
	}
	order, err := l.schedule()
	if err != nil || order.Weights == step.Flush {
		return err
	}
	if l.PerRank() > 1 || l.RingRanks || l.ZeRO > 0 || l.Partition || l.Offload != (offload.Host{}) || l.Sync != "" ||
		l.EachMicroBatch || l.Every > 1 ||
		l.Hook != nil {
		return fmt.Errorf("parallel: Layout.Schedule is %q, which updates while micro-batches are under way: choose "+
			"one "+
			"that does not, "+
			"or leave Replicas, Recompute and Cut alone beside it, with ranks of one device", l.Schedule)
	}
	return nil
}

// gradients are the options of package ddp that the layout has.
func (l Layout) gradients() ddp.Options {
	return ddp.Options{Sync: l.Sync, BucketBytes: l.BucketBytes, EachMicroBatch: l.EachMicroBatch, SumLoss: l.SumLoss,
		Every: l.Every,
		Hook:  l.Hook}
}

// validateGradients is Validate for what happens to gradients.
func (l Layout) validateGradients() error {
	if err := l.gradients().Validate(); err != nil {
		return fmt.Errorf("parallel: of Layout: %w", err)
	}
	sharded := l.ZeRO > 0 && max(l.shards(), l.copies()) > 1
	switch {
	case sharded && (l.Sync != "" || l.BucketBytes > 0):
		return fmt.Errorf("parallel: Layout.Sync is %q, BucketBytes %d and ZeRO %d: what is sharded is reduced "+
			"by the unit that is "+
			"sharded; leave Sync and BucketBytes out", l.Sync, l.BucketBytes, l.ZeRO)
	case sharded && l.EachMicroBatch:
		return fmt.Errorf("parallel: Layout.EachMicroBatch is set and ZeRO is %d, whose stages say when gradients are "+
			"reduced: leave it out",
			l.ZeRO)
	case sharded && (l.Hook != nil || l.Every > 1):
		return fmt.Errorf("parallel: Layout.ZeRO is %d: a hook takes full gradients, and local SGD (Every) "+
			"averages states that each "+
			"replica has in full; leave them out, or ZeRO", l.ZeRO)
	case l.Every > 1 && (l.Sync == ddp.Naive || l.Sync == ddp.Overlap):
		return fmt.Errorf("parallel: Layout.Every is %d and Sync %q: local SGD averages parameters, and reduces no "+
			"gradients; leave one of them out", l.Every, l.Sync)
	case l.BucketBytes > 0 && l.Sync != ddp.Bucketed:
		return fmt.Errorf("parallel: Layout.BucketBytes is %d and Sync %q, which has no such buckets: set Sync to "+
			"%q, or leave it out",
			l.BucketBytes, l.Sync, ddp.Bucketed)
	case l.copies() == 1 && (l.Hook != nil || l.Every > 1):
		return errors.New("parallel: Layout.Hook and Every are for what goes between replicas, and Replicas is 1: a " +
			"rank's own devices " +
			"all-reduce gradients in their programs; leave them out, or use Replicas")
	case l.Tensor > 1 && l.Hook != nil:
		return fmt.Errorf("parallel: Layout.Hook takes full gradients, and with Tensor %d a device has those of "+
			"parts: leave one of "+
			"them out", l.Tensor)
	}
	return nil
}

// schedule is that of one pipeline.
func (l Layout) schedule() (*step.Plan, error) {
	l = l.withDefaults()
	if l.Plan != nil {
		return l.Plan, l.Plan.Check()
	}
	return pipeline.NewSchedule(l.Schedule, l.Pipe, l.Microbatches, l.Chunks)
}

// axes are those of a rank's mesh. Tensor-parallel devices, which send the most, are neighbours.
func (l Layout) axes() []xla.MeshAxis {
	l = l.withDefaults()
	return []xla.MeshAxis{xla.Axis(train.Axis, l.Data), xla.Axis(Ring, l.ring()), xla.Axis(Ulysses, l.Ulysses),
		xla.Axis(Tensor, l.Tensor)}
}

// TensorGroup is the tensor-parallel devices, for a model that is written with them. Where there is one device, it is
// the zero group.
func (l Layout) TensorGroup() tensor.Group {
	if l.withDefaults().Tensor == 1 {
		return tensor.Group{}
	}
	return tensor.Group{Axis: Tensor, Sequence: l.TensorSequence}
}

// SequenceGroup is the sequence-parallel devices, for a model that is written with them; a placement is for a ring.
// Where there is one device, it is the zero group.
func (l Layout) SequenceGroup(p sequence.Placement) (g sequence.Group) {
	l = l.withDefaults()
	if l.Ring > 1 {
		g.Ring, g.Placement = Ring, p
	}
	if l.Ulysses > 1 {
		g.Ulysses = Ulysses
	}
	return g
}

// MicroBatch is how many sequences of a micro-batch a device has, of a batch of rows sequences. Sequences that cannot be
// divided evenly are an error.
func (l Layout) MicroBatch(rows int) (int, error) {
	l = l.withDefaults()
	parts := l.Replicas * l.Data * l.Microbatches
	if rows < 1 || rows%parts != 0 {
		return 0, fmt.Errorf("parallel: a batch of %d sequences for %d data-parallel devices, with %d micro-batches "+
			"each: "+
			"make it a multiple of %d", rows, l.Replicas*l.Data, l.Microbatches, parts)
	}
	return rows / parts, nil
}

// Estimate is the memory of each stage's devices, before anything runs: a setup with what the layout says put into it.
// rows is how many sequences a batch has. Those that cannot be divided evenly, and what memest refuses, are errors.
func (l Layout) Estimate(s memest.Setup, rows int) (memest.Ledger, error) {
	if err := l.Validate(); err != nil {
		return memest.Ledger{}, err
	}
	l = l.withDefaults()
	micro, err := l.MicroBatch(rows)
	if err != nil {
		return memest.Ledger{}, err
	}
	s.Batch, s.Microbatches = micro, l.Microbatches
	s.Bucket = cmp.Or(s.Bucket, 1) // there are no buckets: gradients are reduced where they lie
	data := l.Replicas * l.Data
	if l.ZeRO > 0 {
		data = l.Data // over replicas nothing is sharded
	}
	s.Layout = memest.Layout{Data: data, Tensor: l.Tensor, Seq: l.TensorSequence, Context: l.Ring * l.Ulysses,
		Pipeline: l.Pipe, Chunks: l.Chunks, Schedule: memest.Schedule(l.Schedule), ZeRO: l.ZeRO}
	return memest.Estimate(s)
}

// Fits returns an error that names the stage whose devices need most, if that is more than a number of bytes.
func (l Layout) Fits(s memest.Setup, rows int, bytes int64) error {
	ledger, err := l.Estimate(s, rows)
	if err != nil {
		return err
	}
	if most := ledger.Largest(); most.Bytes() > bytes {
		return fmt.Errorf("parallel: a device of stage %d needs %d bytes, and has %d: choose more devices along pipe, "+
			"tensor or a sequence axis, "+
			"a higher ZeRO stage, recomputation or a smaller micro-batch", most.Index, most.Bytes(), bytes)
	}
	return nil
}
