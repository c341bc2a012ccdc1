package parallel

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

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
	Expert  = "expert"
)

// Layout is the number of devices in each kind of parallelism, and which state they shard. A zero number means 1.
//
// It has Replicas × Pipe ranks, or Replicas × Ring × Pipe with RingRanks. Each rank drives Data × Ring × Ulysses ×
// Tensor devices with programs of its own. Devices of a rank communicate by collectives in these programs; ranks
// communicate by messages of a group, also between hosts.
type Layout struct {
	// Replicas is data parallelism between ranks: the number of pipelines, each with its shard of the batch. ZeRO
	// shards over replicas if a rank has no devices of its own to shard over; else each replica has a copy of the
	// sharded state (hybrid sharding; Zhao et al. 2023, "PyTorch FSDP", §3.2.2).
	Replicas int `json:"replicas,omitempty"`
	// Pipe is pipeline parallelism: the number of ranks that share the model's blocks.
	Pipe int `json:"pipe,omitempty"`
	// Data is data parallelism within a rank: the number of its devices with different sequences of the batch.
	Data int `json:"data,omitempty"`
	// Ring and Ulysses are sequence (context) parallelism: the number of devices that split each sequence, by ring
	// attention, by all-to-alls, or by both (see package sequence).
	Ring    int `json:"ring,omitempty"`
	Ulysses int `json:"ulysses,omitempty"`
	// RingRanks puts the devices of a ring on different ranks, which may be on different hosts, with Ulysses between
	// the devices of a rank (the hybrid of Fang and Zhao 2024, "USP"). A pass is then several programs, between which
	// keys and values are sent. ZeRO shards over the ranks of a ring as over replicas.
	RingRanks bool `json:"ring_ranks,omitempty"`
	// Tensor is tensor parallelism: the number of devices that shard each layer.
	Tensor int `json:"tensor,omitempty"`
	// Expert is expert parallelism: the number of data-parallel devices among which the experts of a block are divided,
	// and which send each other their tokens. It divides Data, or, if Data is 1, Replicas, whose neighbours then have
	// different experts. Tensor-parallel devices have different experts in any case (Liu et al. 2025, "MoE Parallel
	// Folding").
	Expert int `json:"expert,omitempty"`
	// TensorSequence also shards the activations between layers over these devices, by token (Korthikanti et al. 2022,
	// §4.2.2).
	TensorSequence bool `json:"tensor_sequence,omitempty"`

	// ZeRO is the stage: data- and sequence-parallel devices of a rank shard optimizer states (1), also gradients (2),
	// also parameters (3) (Rajbhandari et al. 2020, §5).
	ZeRO int `json:"zero,omitempty"`
	// Prefetch is the number of passes by which a block's parameters are gathered early, in stage 3.
	Prefetch int `json:"prefetch,omitempty"`
	// Shards is the number of neighbouring replicas that shard one copy of the state, if ZeRO shards over replicas; 0
	// means all replicas.
	Shards int `json:"shards,omitempty"`

	// Schedule is the order of the micro-batches' passes; it defaults to 1F1B. With ZeRO-3, schedules that split the
	// backward pass gather parameters for both parts. Schedules that update during a step (Kind.Synchronous is false)
	// need ranks of one device, and allow only Replicas, Recompute and Cut. Chunks is the number of stages of each rank
	// in interleaved schedules.
	Schedule pipeline.Kind `json:"schedule,omitempty"`
	Chunks   int           `json:"chunks,omitempty"`
	// Plan is the caller's own schedule, which replaces Schedule, Chunks, Microbatches and Pipe. Its blocks are the
	// stages.
	Plan *step.Plan `json:"-"`
	// Microbatches is the number of micro-batches of a rank in a step; it defaults to Pipe.
	Microbatches int `json:"microbatches,omitempty"`
	// Cut is the number of the model's blocks in each stage; nil means pipeline.Even.
	Cut []int `json:"cut,omitempty"`
	// Recompute saves only a stage's input between the forward and backward pass of a micro-batch.
	Recompute bool `json:"recompute,omitempty"`
	// Partition saves only the inputs of blocks, sharded over the tensor-parallel devices (ZeRO-R's P_a, Rajbhandari et
	// al. 2020, §6.1).
	Partition bool `json:"partition,omitempty"`
	// Offload is the state that is stored in the host's memory and updated there. Offloaded updates need ranks of one
	// device.
	Offload offload.Host `json:"offload,omitzero"`

	// Sync and BucketBytes are those of ddp.Options: when gradients are reduced, and in which pieces. With "" each
	// block's gradients are reduced as soon as they are computed.
	Sync        ddp.Sync `json:"sync,omitempty"`
	BucketBytes int64    `json:"bucket_bytes,omitempty"`
	// EachMicroBatch, SumLoss, Every (local SGD, between replicas) and Hook (between replicas) are those of
	// ddp.Options.
	EachMicroBatch bool            `json:"each_microbatch,omitempty"`
	SumLoss        bool            `json:"sum_loss,omitempty"`
	Every          int             `json:"every,omitempty"`
	Hook           func() ddp.Hook `json:"-"`

	// Hosts is the number of machines; each has the same number of consecutive ranks, so the ranks of a pipeline are
	// neighbours. The devices of a rank are always on one host.
	Hosts int `json:"hosts,omitempty"`
}

// withDefaults replaces zeros by the defaults.
func (l Layout) withDefaults() Layout {
	if l.Plan != nil {
		l.Pipe, l.Microbatches, l.Chunks, l.Schedule = len(l.Plan.Ranks), l.Plan.Micro, l.Plan.Chunks(),
			pipeline.Kind(l.Plan.Name)
	}
	for _, n := range []*int{&l.Replicas, &l.Pipe, &l.Data, &l.Ring, &l.Ulysses, &l.Tensor, &l.Expert, &l.Hosts} {
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

// Ranks is the number of ranks, PerRank the number of devices of each, and Devices the number of all devices.
func (l Layout) Ranks() int   { return l.copies() * l.withDefaults().Pipe }
func (l Layout) PerRank() int { return l.shards() * l.withDefaults().Tensor }
func (l Layout) Devices() int { return l.Ranks() * l.PerRank() }

// ring is the number of a rank's devices along the ring.
func (l Layout) ring() int {
	if l.RingRanks {
		return 1
	}
	return l.withDefaults().Ring
}

// copies is the number of pipelines with different sequences or tokens.
func (l Layout) copies() int {
	l = l.withDefaults()
	return l.Replicas * l.Ring / l.ring()
}

// shards is the number of a rank's devices with the same parameters.
func (l Layout) shards() int {
	l = l.withDefaults()
	return l.Data * l.ring() * l.Ulysses
}

// expertRanks is the number of ranks with different experts, and expertDevices that of a rank's devices along [Expert].
func (l Layout) expertRanks() int { return l.withDefaults().Expert / l.expertDevices() }
func (l Layout) expertDevices() int {
	if l = l.withDefaults(); l.Data > 1 {
		return l.Expert
	}
	return 1
}

// Between lists the communication between hosts by its names in [Layout.Traffic]: [BetweenRanks] for the gradients of
// replicas, [BetweenStages] for activations.
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

// Validate returns an error that names the first invalid field, its value and what to do.
func (l Layout) Validate() error {
	for _, f := range []struct {
		name  string
		value int
	}{
		{"Replicas", l.Replicas}, {"Pipe", l.Pipe}, {"Data", l.Data}, {"Ring", l.Ring}, {"Ulysses", l.Ulysses},
		{"Tensor", l.Tensor}, {"Expert", l.Expert},
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
		return fmt.Errorf("parallel: Layout.Prefetch is %d in stage %d of ZeRO, which does not gather "+
			"parameters: leave it 0", l.Prefetch, l.ZeRO)
	case l.TensorSequence && l.Tensor == 1:
		return errors.New("parallel: Layout.TensorSequence is set and Layout.Tensor is 1: leave it out")
	case l.Shards > 0 && (l.ZeRO == 0 || l.shards() > 1 || l.copies()%l.Shards != 0):
		return fmt.Errorf("parallel: Layout.Shards is %d, with ZeRO=%d, %d replicas and %d devices of a rank that "+
			"shard its state: choose a divisor of the replicas, for ZeRO over ranks of one device, or 0", l.Shards,
			l.ZeRO, l.copies(), l.shards())
	case l.Data > 1 && l.Data%l.Expert != 0 || l.Data == 1 && l.Replicas%l.Expert != 0:
		return fmt.Errorf("parallel: Layout.Expert is %d, with Data=%d and Replicas=%d: choose a divisor of Data, or "+
			"of Replicas if Data is 1", l.Expert, l.Data, l.Replicas)
	case l.expertRanks() > 1 && (l.PerRank() > 1 || l.RingRanks || l.Shards > 0 || l.Every > 1 || l.Hook != nil):
		return fmt.Errorf("parallel: Layout.Expert is %d, between ranks, with %d devices for each, RingRanks=%v, "+
			"Shards=%d, Every=%d or a Hook: experts between ranks need ranks of one device, and none of these; or "+
			"put them on the devices of a rank, with Data", l.Expert, l.PerRank(), l.RingRanks, l.Shards, l.Every)
	case l.RingRanks && l.Ring == 1:
		return errors.New("parallel: Layout.RingRanks is set and Ring is 1: set Ring to the number of ranks, or " +
			"leave it out")
	case l.RingRanks && l.Every > 1:
		return fmt.Errorf("parallel: Layout.RingRanks is set and Every is %d: the ranks of a ring have the gradients "+
			"of one batch, which is averaged each time; leave one of them out", l.Every)
	case l.Partition && (l.Tensor == 1 || l.TensorSequence || l.Recompute):
		return fmt.Errorf("parallel: Layout.Partition is set, with Tensor=%d, TensorSequence=%v and Recompute=%v: it "+
			"is for devices that are tensor-parallel and have full activations between layers, and recomputes block "+
			"by block", l.Tensor, l.TensorSequence, l.Recompute)
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
		l.EachMicroBatch || l.Every > 1 || l.Hook != nil {
		return fmt.Errorf("parallel: Layout.Schedule is %q, which updates while micro-batches are under way: choose "+
			"one that does not, "+
			"or leave Replicas, Recompute and Cut alone beside it, with ranks of one device", l.Schedule)
	}
	return nil
}

// gradients returns the layout's options of package ddp.
func (l Layout) gradients() ddp.Options {
	return ddp.Options{Sync: l.Sync, BucketBytes: l.BucketBytes, EachMicroBatch: l.EachMicroBatch, SumLoss: l.SumLoss,
		Every: l.Every,
		Hook:  l.Hook}
}

// validateGradients checks the fields for the reduction of gradients.
func (l Layout) validateGradients() error {
	if err := l.gradients().Validate(); err != nil {
		return fmt.Errorf("parallel: Layout: %w", err)
	}
	sharded := l.ZeRO > 0 && max(l.shards(), l.copies()) > 1
	switch {
	case sharded && (l.Sync != "" || l.BucketBytes > 0):
		return fmt.Errorf("parallel: Layout.Sync is %q, BucketBytes %d and ZeRO %d: what is sharded is reduced by the "+
			"unit that is sharded; leave Sync and BucketBytes out", l.Sync, l.BucketBytes, l.ZeRO)
	case sharded && l.EachMicroBatch:
		return fmt.Errorf("parallel: Layout.EachMicroBatch is set and ZeRO is %d, whose stages say when gradients are "+
			"reduced: leave it out", l.ZeRO)
	case sharded && (l.Hook != nil || l.Every > 1):
		return fmt.Errorf("parallel: Layout.ZeRO is %d: a hook takes full gradients, and local SGD (Every) averages "+
			"states that each replica has in full; leave them out, or ZeRO", l.ZeRO)
	case l.Every > 1 && (l.Sync == ddp.Naive || l.Sync == ddp.Overlap):
		return fmt.Errorf("parallel: Layout.Every is %d and Sync %q: local SGD averages parameters, and reduces no "+
			"gradients; leave one of them out", l.Every, l.Sync)
	case l.BucketBytes > 0 && l.Sync != ddp.Bucketed:
		return fmt.Errorf("parallel: Layout.BucketBytes is %d and Sync %q, which has no such buckets: set Sync to %q, "+
			"or leave it out", l.BucketBytes, l.Sync, ddp.Bucketed)
	case l.copies() == 1 && (l.Hook != nil || l.Every > 1):
		return errors.New("parallel: Layout.Hook and Every are for what goes between replicas, and Replicas is 1: a " +
			"rank's own devices all-reduce gradients in their programs; leave them out, or use Replicas")
	case l.Tensor > 1 && l.Hook != nil:
		return fmt.Errorf("parallel: Layout.Hook takes full gradients, and with Tensor %d a device has gradients of "+
			"parts: leave one of them out", l.Tensor)
	}
	return nil
}

// schedule returns the schedule of one pipeline.
func (l Layout) schedule() (*step.Plan, error) {
	l = l.withDefaults()
	if l.Plan != nil {
		return l.Plan, l.Plan.Check()
	}
	return pipeline.NewSchedule(l.Schedule, l.Pipe, l.Microbatches, l.Chunks)
}

// axes are the axes of a rank's mesh. Tensor-parallel devices, which communicate most, are neighbours.
func (l Layout) axes() []xla.MeshAxis {
	l = l.withDefaults()
	all := []xla.MeshAxis{xla.Axis(train.Axis, l.Data), xla.Axis(Ring, l.ring()), xla.Axis(Ulysses, l.Ulysses),
		xla.Axis(Tensor, l.Tensor)}
	if n := l.expertDevices(); n > 1 {
		all[0].Size /= n
		all = slices.Insert(all, 1, xla.Axis(Expert, n))
	}
	return all
}

// Experts returns the axes of the devices that have different experts of a block, to build the model with.
func (l Layout) Experts() (axes []string) {
	if l = l.withDefaults(); l.Expert > 1 {
		axes = append(axes, Expert)
	}
	if l.Tensor > 1 {
		axes = append(axes, Tensor)
	}
	return axes
}

// TensorGroup returns the group of tensor-parallel devices, to build the model with; the zero group if there is one
// device.
func (l Layout) TensorGroup() tensor.Group {
	if l.withDefaults().Tensor == 1 {
		return tensor.Group{}
	}
	return tensor.Group{Axis: Tensor, Sequence: l.TensorSequence}
}

// SequenceGroup returns the group of sequence-parallel devices, to build the model with; the zero group if there is one
// device. p is the placement of tokens on a ring.
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

// MicroBatch returns the number of sequences of a micro-batch on a device. rows is the number of sequences of a batch;
// it is an error if they cannot be divided evenly.
func (l Layout) MicroBatch(rows int) (int, error) {
	l = l.withDefaults()
	parts := l.Replicas * l.Data * l.Microbatches
	if rows < 1 || rows%parts != 0 {
		return 0, fmt.Errorf("parallel: a batch of %d sequences for %d data-parallel devices, with %d micro-batches "+
			"each: make it a multiple of %d", rows, l.Replicas*l.Data, l.Microbatches, parts)
	}
	return rows / parts, nil
}

// Estimate predicts the memory of each stage's devices for a setup, in which it sets what the layout decides. rows is
// the number of sequences of a batch. It is an error if they cannot be divided evenly or memest rejects the setup.
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
	s.Bucket = cmp.Or(s.Bucket, 1) // no buckets: gradients are reduced in place
	data := l.Replicas * l.Data
	if l.ZeRO > 0 && (l.shards() > 1 || l.Shards > 0) {
		data = l.Data // replicas shard nothing
	}
	s.Parallelism = memest.Parallelism{Data: data, Tensor: l.Tensor, Seq: l.TensorSequence, Context: l.Ring * l.Ulysses,
		Expert: l.Expert, Pipeline: l.Pipe, Chunks: l.Chunks, Schedule: memest.Schedule(l.Schedule), ZeRO: l.ZeRO}
	return memest.Estimate(s)
}

// Fits returns an error if a device needs more than the given bytes. The error names the stage that needs most.
func (l Layout) Fits(s memest.Setup, rows int, bytes int64) error {
	ledger, err := l.Estimate(s, rows)
	if err != nil {
		return err
	}
	if most := ledger.Largest(); most.Bytes() > bytes {
		return fmt.Errorf("parallel: a device of stage %d needs %d bytes and has %d: choose more devices along pipe, "+
			"tensor or a sequence axis, "+
			"a higher ZeRO stage, recomputation or a smaller micro-batch", most.Index, most.Bytes(), bytes)
	}
	return nil
}
