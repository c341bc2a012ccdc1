package parallel_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/expert"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/train"
)

// TestTraffic compares what a layout says that a step sends with what ranks count in one: the same axes, and the same
// bytes but for a few of losses, norms and devices' own numbers.
func TestTraffic(t *testing.T) {
	const rows, few = 8, 64
	plain := gpt.Config{Layers: 2, Width: 32, Heads: 4, Seq: 32, Vocab: 64, NoBias: true, Norm: gpt.RMSNorm,
		Activation: gpt.ReLU}
	tied := plain
	tied.Tied = true
	mixture := gpt.Config{Layers: 2, Width: 32, Heads: 4, Seq: 32, Vocab: 64, Norm: gpt.RMSNorm, Gated: true,
		QKNorm: true, DenseLayers: 1, SharedExperts: 1, Experts: expert.Config{Experts: 8, PerToken: 2, Hidden: 16}}
	for _, c := range []struct {
		gpt.Config
		layouts []parallel.Layout
	}{
		{plain, []parallel.Layout{
			{Data: 2, ZeRO: 1, Microbatches: 2},
			{Data: 2, ZeRO: 3, Recompute: true},
			{Data: 2, ZeRO: 3, Tensor: 2, TensorSequence: true, Pipe: 2, Schedule: pipeline.KindZBH1},
			{Replicas: 2, Data: 2, Tensor: 2, Recompute: true},
			{Data: 2, Tensor: 2, TensorSequence: true, ZeRO: 2, Microbatches: 2},
			{Data: 2, Ring: 2, Ulysses: 2, Recompute: true},
			{Data: 2, Tensor: 2, Partition: true},
			{Replicas: 2, Tensor: 2, Partition: true, Microbatches: 2},
			{Replicas: 4, ZeRO: 3, Shards: 2},
			{Replicas: 2, ZeRO: 1, Pipe: 2},
			{Ring: 4, RingRanks: true, Recompute: true},
			{Ring: 2, RingRanks: true, Tensor: 2},
			{Pipe: 2, Tensor: 2},
			{Pipe: 2, Tensor: 2, Recompute: true},
			{Pipe: 2, Tensor: 2, Partition: true},
			{Pipe: 2, Tensor: 2, Partition: true, Schedule: pipeline.KindZBH1},
			{Replicas: 2, Ring: 2, RingRanks: true, Ulysses: 2},
		}},
		{tied, []parallel.Layout{
			{Data: 2, ZeRO: 3},
			{Pipe: 2},
			{Pipe: 2, Schedule: pipeline.KindZBV},
			{Pipe: 2, Schedule: pipeline.KindDualPipe, Microbatches: 4},
		}},
		{mixture, []parallel.Layout{
			{Data: 2, ZeRO: 3},
			{Data: 4, Expert: 2, ZeRO: 3, Recompute: true},
			{Replicas: 2, Data: 4, Expert: 2},
			{Replicas: 4, Expert: 2, ZeRO: 1},
			{Data: 4, Expert: 2, Pipe: 2, Schedule: pipeline.KindZBH1},
			{Data: 2, Expert: 2, Tensor: 2},
			{Data: 2, Expert: 2, Tensor: 2, TensorSequence: true, ZeRO: 1},
		}},
	} {
		x := tensors.FromFlatDataAndDimensions(make([]int32, rows*c.Seq), rows, c.Seq)
		for _, l := range c.layouts {
			run := start(t, train.Recipe{Model: c.Config, Optimizer: optim.SGD(0.1)}, l)
			must.Get(run.Step(t.Context(), x, x))(t)
			got := must.Get(run.Traffic())(t)
			want := must.Get(l.Traffic(setup(c.Config), rows))(t)
			for name := range want {
				if _, ok := got[name]; !ok {
					got[name] = 0
				}
			}
			few := few
			if c.Experts.Experts > 0 {
				few = 256 // the loads of experts
			}
			for name, n := range got {
				switch tokens := strings.Join(l.Experts(), ","); {
				case l.Expert > 1 && tokens == name && l.Data < 2: // between ranks only what the router sends
					continue
				case l.Expert > 1 && tokens == name:
					// Arrays have room for all choices of all devices' tokens.
					devices := l.Expert * max(1, l.Tensor)
					n = n * int64(devices-1) / int64(devices*devices)
				}
				if math.Abs(float64(n-want[name])) > float64(few) {
					t.Errorf("%+v: a rank sent %d bytes along %s, want %d", l, n, name, want[name])
				}
			}
			if err := run.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestBetween holds what a layout says that goes between hosts against the names of its traffic.
func TestBetween(t *testing.T) {
	l := parallel.Layout{Replicas: 2, Pipe: 2, Data: 2, Hosts: 4}
	sent, err := l.Traffic(setup(small(2)), 8)
	must.Do(t, err)
	for _, name := range l.Between() {
		if sent[name] == 0 {
			t.Errorf("%s goes between hosts, and a step sends %v", name, sent)
		}
	}
	if want := []string{parallel.BetweenRanks, parallel.BetweenStages}; !slices.Equal(l.Between(), want) {
		t.Errorf("%q go between hosts, want %q", l.Between(), want)
	}
	_, err = l.Traffic(setup(small(2)), 7)
	must.Refuse(t, "rows", err, "a batch of 7 sequences")
	_, err = parallel.Layout{Pipe: -1}.Traffic(setup(small(2)), 8)
	must.Refuse(t, "layout", err, "Layout.Pipe is -1")
}
