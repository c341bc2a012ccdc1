package parallel_test

import (
	"testing"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/offload"
	"github.com/shardbook/shardbook/lib/parallel"
)

// TestLayoutText writes layouts, of which some are not valid. A number of devices that is 1 is written as none.
func TestLayoutText(t *testing.T) {
	for want, l := range map[string]parallel.Layout{
		"": {Replicas: 1, Pipe: 1, Data: 1, Tensor: 1, Ring: 1, Ulysses: 1, Every: 1, Hosts: 1},
		"replicas=2,pipe=3,data=4,tensor=5,zero=1":                 {Replicas: 2, Pipe: 3, Data: 4, Tensor: 5, ZeRO: 1},
		"tensor-sequence,tensor-partition,seq-parallel=2":          {TensorSequence: true, Partition: true, Ring: 2},
		"seq-parallel=3,seq-method=ulysses":                        {Ulysses: 3},
		"seq-parallel=6,seq-method=hybrid,seq-ulysses=3,seq-ranks": {Ring: 2, Ulysses: 3, RingRanks: true},
		"zero=3,prefetch=1,shards=2,offload-optimizer,offload-activations": {ZeRO: 3, Prefetch: 1, Shards: 2,
			Offload: offload.Host{Update: true, Activations: true}},
		"schedule=zb-h1,chunks=2,microbatches=1,cut=3:2:1,recompute-stages": {Schedule: "zb-h1", Chunks: 2,
			Microbatches: 1, Cut: []int{3, 2, 1}, Recompute: true},
		"sync=overlap,bucket-bytes=1000,every=2,each-microbatch,sum-loss,hosts=2": {Sync: "overlap", BucketBytes: 1000,
			Every: 2, EachMicroBatch: true, SumLoss: true, Hosts: 2},
	} {
		if got := l.String(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// TestSequenceDegrees splits devices that share sequences.
func TestSequenceDegrees(t *testing.T) {
	for _, c := range []struct {
		method         string
		n, given, keys int
		ring, ulysses  int
		err            string
	}{
		{"", 0, 0, 3, 1, 1, ""},
		{"", 6, 0, 4, 6, 1, ""},
		{"allgather", 3, 0, 4, 3, 1, ""},
		{"ulysses", 4, 0, 8, 1, 4, ""},
		{"ulysses", 8, 0, 4, 1, 8, ""}, // for the model to refuse
		{"hybrid", 4, 0, 4, 2, 2, ""},  // less than all four
		{"hybrid", 8, 0, 8, 2, 4, ""},
		{"hybrid", 12, 0, 9, 4, 3, ""},
		{"hybrid", 12, 0, 8, 3, 4, ""},
		{"hybrid", 12, 2, 8, 6, 2, ""},
		{"hybrid", 5, 0, 5, 0, 0, "no number of devices below 5"},
		{"hybrid", 4, 0, 1, 0, 0, "no number of devices below 4"},
		{"hybrid", 4, 3, 4, 0, 0, "choose a divisor between 1 and 4"},
		{"ulysses", 4, 4, 4, 0, 0, "or choose hybrid"},
		{"", 4, 2, 4, 0, 0, "Layout.Ulysses is 2 with the sequence method ring"},
		{"flash", 4, 0, 4, 0, 0, `the sequence method is "flash": want one of ring,`},
		{"", -1, 0, 4, 0, 0, "-1 devices share sequences"},
	} {
		ring, ulysses, err := parallel.SequenceDegrees(c.n, c.method, c.given, c.keys)
		if ring != c.ring || ulysses != c.ulysses {
			t.Errorf("%+v: %d and %d, error %v", c, ring, ulysses, err)
		}
		if c.err != "" {
			must.Refuse(t, c.method, err, c.err)
		} else if err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
