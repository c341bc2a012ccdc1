package parallel_test

import (
	"maps"
	"math"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/offload"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/train"
)

// TestRefusedLayouts deals a model with few heads, blocks and tokens to all layouts of eight devices: what memest
// refuses is refused with its reason before anything runs, and, but for what is listed, by the plan as well.
func TestRefusedLayouts(t *testing.T) {
	c := small(4)
	c.Heads, c.Seq = 4, 4
	refused := 0
	for _, s := range shapesOf(deviceCount) {
		for _, sequence := range []bool{false, true} {
			if sequence && s.tensor == 1 {
				continue
			}
			l := parallel.Layout{Pipe: s.pipe, Data: s.data, Tensor: s.tensor, Ring: s.seq, TensorSequence: sequence}
			var field, planned string
			switch {
			case s.tensor > c.Heads:
				if field, planned = "Parallelism.Tensor is 8", "8 ranks cannot share 4 query heads evenly"; sequence {
					planned = "Config.Seq is 4"
				}
			case s.seq > c.Seq: // the ring pads its chunks of tokens, which memest does not count
				field = "Parallelism.Context is 8"
			case sequence && c.Seq/s.seq%s.tensor != 0:
				field, planned = "Parallelism.Seq is set", "Config.Seq is 4"
			case s.pipe > c.Layers:
				field, planned = "Parallelism.Pipeline is 8", "6 blocks cannot be 8 stages"
			}
			_, ledger := l.Estimate(setup(c), layoutRows)
			_, plan := parallel.NewPlan(sharing(train.Recipe{Model: c, Optimizer: optim.SGD(1)}, l, ""), l)
			if field == "" {
				if ledger != nil || plan != nil {
					t.Errorf("%+v is refused: by the estimate: %v; by the plan: %v", l, ledger, plan)
				}
				continue
			}
			refused++
			must.Refuse(t, "estimate", ledger, field)
			if planned != "" {
				must.Refuse(t, "plan", plan, planned)
			}
		}
	}
	if refused < 6 {
		t.Errorf("only %d layouts are refused", refused)
	}
	// one head for two devices; memest does not know in which way devices share sequences
	l := parallel.Layout{Ulysses: 8}
	_, err := parallel.NewPlan(sharing(train.Recipe{Model: c, Optimizer: optim.SGD(1)}, l, ""), l)
	must.Refuse(t, "ulysses", err, "a device has 4 query heads")
}

// TestStagesAlone: without devices that have other rows or tokens, all stages of ZeRO have the same on all ranks.
func TestStagesAlone(t *testing.T) {
	for _, s := range shapesOf(deviceCount) {
		if s.data*s.seq > 1 {
			continue
		}
		l := parallel.Layout{Pipe: s.pipe, Tensor: s.tensor, Ring: s.seq}
		r := sharing(train.Recipe{Model: small(max(2, s.pipe)), Optimizer: optim.AdamW(1)}, l, "")
		for rank := range l.Ranks() {
			var first map[memest.Kind]int64
			for l.ZeRO = range 4 {
				p := must.Get(parallel.NewPlan(r, l))(t)
				kinds := must.Get(p.Bytes(rank))(t)
				if first == nil {
					first = kinds
				}
				if !maps.Equal(kinds, first) {
					t.Errorf("%+v: rank %d has %v bytes, with ZeRO 0 %v", l, rank, kinds, first)
				}
			}
		}
	}
}

// TestLayoutNumbers counts ranks and devices, and lists what goes between hosts.
func TestLayoutNumbers(t *testing.T) {
	for _, c := range []struct {
		layout                  parallel.Layout
		ranks, perRank, devices int
		between                 string
	}{
		{parallel.Layout{}, 1, 1, 1, ""},
		{parallel.Layout{Pipe: 2, Data: 2, Tensor: 2}, 2, 4, 8, ""},
		{parallel.Layout{Replicas: 3, Pipe: 2, Ring: 2, Ulysses: 5}, 6, 10, 60, ""},
		{parallel.Layout{Replicas: 2, Pipe: 2, Hosts: 2}, 4, 1, 4, "replica"},
		{parallel.Layout{Replicas: 2, Pipe: 2, Hosts: 4}, 4, 1, 4, "replica pipe"},
		{parallel.Layout{Pipe: 4, Hosts: 2, Data: 2}, 4, 2, 8, "pipe"},
		{parallel.Layout{Pipe: 4, Hosts: 4}, 4, 1, 4, "pipe"},
		{parallel.Layout{Replicas: 3, Pipe: 2, Hosts: 2}, 6, 1, 6, "replica pipe"}, // the second pipeline is on both
		{parallel.Layout{Replicas: 4, Hosts: 2}, 4, 1, 4, "replica"},
		{parallel.Layout{Ring: 3, RingRanks: true, Ulysses: 2, Hosts: 3}, 3, 2, 6, "replica ring"},
		{parallel.Layout{Ring: 2, RingRanks: true, Pipe: 2, Replicas: 2, Hosts: 2}, 8, 1, 8, "replica"},
	} {
		l := c.layout
		if err := l.Validate(); err != nil {
			t.Error(err)
		}
		if got := strings.Join(l.Between(), " "); l.Ranks() != c.ranks || l.PerRank() != c.perRank ||
			l.Devices() != c.devices || got != c.between {
			t.Errorf("%+v: %d ranks of %d devices, %d in all, %q between hosts; want %d, %d, %d and %q", l, l.Ranks(),
				l.PerRank(), l.Devices(), got, c.ranks, c.perRank, c.devices, c.between)
		}
	}
}

// TestInvalidLayouts lists what a layout cannot be.
func TestInvalidLayouts(t *testing.T) {
	for _, c := range []struct {
		layout parallel.Layout
		want   string
	}{
		{parallel.Layout{Replicas: -1}, "Layout.Replicas is -1: set it to at least 1"},
		{parallel.Layout{Pipe: -2}, "Layout.Pipe is -2"},
		{parallel.Layout{Data: math.MaxInt}, "Layout.Data is 9223372036854775807"},
		{parallel.Layout{Ring: -1}, "Layout.Ring is -1"},
		{parallel.Layout{RingRanks: true}, "Layout.RingRanks is set and Ring is 1"},
		{parallel.Layout{Ring: 2, RingRanks: true, Every: 2}, "RingRanks is set and Every is 2"},
		{parallel.Layout{Tensor: 2, Partition: true, Offload: offload.Host{Activations: true}},
			"so leave Partition out"},
		{parallel.Layout{Ulysses: -1}, "Layout.Ulysses is -1"},
		{parallel.Layout{Tensor: -1}, "Layout.Tensor is -1"},
		{parallel.Layout{Chunks: -1}, "Layout.Chunks is -1"},
		{parallel.Layout{Microbatches: -1}, "Layout.Microbatches is -1"},
		{parallel.Layout{Hosts: -1}, "Layout.Hosts is -1"},
		{parallel.Layout{ZeRO: -1}, "Layout.ZeRO is -1"},
		{parallel.Layout{Data: 2, ZeRO: 4}, "Layout.ZeRO is 4: choose a stage from 0 to 3"},
		{parallel.Layout{Replicas: 2, ZeRO: 1, Prefetch: 1}, "Layout.Prefetch is 1 in stage 1 of ZeRO"},
		{parallel.Layout{TensorSequence: true}, "Layout.TensorSequence is set and Layout.Tensor is 1"},
		{parallel.Layout{Replicas: 3, Hosts: 2}, "Layout.Hosts is 2, and there are 3 ranks"},
		{parallel.Layout{Pipe: 2, Replicas: 2, ZeRO: 1, Schedule: pipeline.KindPipeDream},
			`Layout.Schedule is "pipedream", which updates while micro-batches are under way`},
		{parallel.Layout{Pipe: 2, Schedule: "no such"}, `unknown kind "no such"`},
		{parallel.Layout{Pipe: 2, Chunks: 3}, "3 chunks"},
		{parallel.Layout{Pipe: 3, Schedule: pipeline.KindDualPipe, Microbatches: 6}, "3 ranks are odd"},
		{parallel.Layout{Pipe: 2, Microbatches: 3, Schedule: pipeline.KindInterleaved},
			"3 micro-batches are not a multiple"},
		{parallel.Layout{Sync: "sometimes"}, `"sometimes"`},
		{parallel.Layout{Replicas: 2, Every: -1}, "Options.Every is -1"},
		{parallel.Layout{Replicas: 2, Every: 2, Sync: ddp.Naive}, `Layout.Every is 2 and Sync "naive"`},
		{parallel.Layout{Replicas: 2, Sync: ddp.Naive, BucketBytes: 9}, `Layout.BucketBytes is 9 and Sync "naive"`},
		{parallel.Layout{Replicas: 2, ZeRO: 1, Sync: ddp.Bucketed},
			"what is sharded is reduced by the unit that is sharded"},
		{parallel.Layout{Data: 2, ZeRO: 3, EachMicroBatch: true}, "Layout.EachMicroBatch is set and ZeRO is 3"},
		{parallel.Layout{Replicas: 2, Data: 2, ZeRO: 1, Every: 2},
			"local SGD (Every) averages states that each replica has in full"},
		{parallel.Layout{Data: 2, Hook: ddp.BF16()}, "Replicas is 1"},
		{parallel.Layout{Replicas: 2, Tensor: 2, Hook: ddp.BF16()}, "with Tensor 2 a device has gradients of parts"},
		{parallel.Layout{Replicas: 2, Every: 2, EachMicroBatch: true}, "Options.Every is 2"},
	} {
		must.Refuse(t, "layout", c.layout.Validate(), c.want)
		_, err := parallel.NewPlan(train.Recipe{Model: small(2), Optimizer: optim.SGD(1)}, c.layout)
		must.Refuse(t, "plan", err, c.want)
		_, err = c.layout.Estimate(setup(small(2)), 8)
		must.Refuse(t, "estimate", err, c.want)
	}
}

// TestFits compares what the stages need with what there is.
func TestFits(t *testing.T) {
	l := parallel.Layout{Replicas: 2, Pipe: 2, Data: 2, Microbatches: 2}
	s := setup(small(4))
	ledger := must.Get(l.Estimate(s, 8))(t)
	if len(ledger.Stages) != 2 {
		t.Fatalf("%d stages, want 2", len(ledger.Stages))
	}
	largest := ledger.BytesPerDevice()
	if err := l.Fits(s, 8, largest); err != nil {
		t.Error(err)
	}
	must.Refuse(t, "too little memory", l.Fits(s, 8, largest-1), "and has")
	must.Refuse(t, "rows", l.Fits(s, 12, 1<<40), "a batch of 12 sequences for 4 data-parallel devices, with 2 "+
		"micro-batches each: make it a multiple of 8")
	must.Refuse(t, "no rows", l.Fits(s, 0, 1<<40), "a batch of 0 sequences")
	more := l
	more.ZeRO = 3
	if sharded, err := more.Estimate(s, 8); err != nil || sharded.BytesPerDevice() >= largest {
		t.Errorf("with ZeRO 3 a device needs %d bytes, without %d: %v", sharded.BytesPerDevice(), largest, err)
	}
}
