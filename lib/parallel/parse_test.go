package parallel_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/offload"
	"github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/pipeline"
)

// TestLayoutText writes random layouts, of which most are not valid, and reads them back. A number of devices that is 1
// is written as none.
func TestLayoutText(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	number := func() int { return max(0, random.IntN(9)-3) }
	yes := func() bool { return random.IntN(4) == 0 }
	several := func() int {
		if n := number(); n != 1 {
			return n
		}
		return 0
	}
	for range 1000 {
		l := parallel.Layout{Replicas: several(), Pipe: several(), Data: several(), Ring: several(), Ulysses: several(),
			RingRanks: yes(), Tensor: several(), TensorSequence: yes(), ZeRO: number(), Prefetch: number(),
			Shards: number(),
			Chunks: number(), Microbatches: number(), Recompute: yes(), Partition: yes(),
			Offload: offload.Host{Update: yes(), Activations: yes()}, BucketBytes: int64(number()) << 30,
			EachMicroBatch: yes(), SumLoss: yes(), Every: several(), Hosts: several()}
		l.Schedule = append(pipeline.Kinds(), "")[random.IntN(len(pipeline.Kinds())+1)]
		l.Sync = append(ddp.Syncs(), "")[random.IntN(len(ddp.Syncs())+1)]
		for range random.IntN(3) {
			l.Cut = append(l.Cut, number())
		}
		got, err := parallel.ParseLayout(l.String())
		if err != nil || !reflect.DeepEqual(got, l) {
			t.Fatalf("%s: read as %+v, error %v, want %+v", l, got, err, l)
		}
	}
}

// TestParseLayoutRefuses lists texts that are no layouts.
func TestParseLayoutRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"pipe=2,pipes=2":                  `the unknown key "pipes": want one of replicas, pipe,`,
		"pipe=2,pipe=3":                   "has the key pipe twice",
		"pipe=two":                        `pipe is "two": want a whole number`,
		"pipe":                            `pipe is "": want a whole number`,
		"tensor=2,tensor-sequence=maybe":  "want true or false",
		"schedule=":                       "want a name",
		"cut=3;2":                         "as 3:2:1",
		"seq-parallel=4,seq-method=flash": `the sequence method is "flash": want one of ring,`,
		"seq-parallel=4,seq-ulysses=2":    "Layout.Ulysses is 2 with the sequence method",
		"seq-parallel=4,seq-method=hybrid,seq-ulysses=3":     "choose a divisor between 1 and 4",
		"seq-parallel=5,seq-method=hybrid":                   "no number of devices below 5",
		"seq-parallel=9223372036854775808":                   "want a whole number",
		"pipe=2, data = 2":                                   `the unknown key "data "`,
		"bucket-bytes=25MB":                                  "want a whole number",
		"seq-parallel=4,seq-method=ulysses,seq-ulysses=4":    "or choose hybrid",
		"tensor=2,tensor-sequence,tensor-sequence=true,zero": "tensor-sequence twice",
	} {
		_, err := parallel.ParseLayout(text)
		checkError(t, text, err, want)
	}
}

// TestSequenceDegrees splits devices that share sequences.
func TestSequenceDegrees(t *testing.T) {
	for _, c := range []struct {
		method         string
		n, given, keys int
		ring, ulysses  int // 0 is refused
	}{
		{"", 0, 0, 3, 1, 1},
		{"", 6, 0, 4, 6, 1},
		{"allgather", 3, 0, 4, 3, 1},
		{"ulysses", 4, 0, 8, 1, 4},
		{"ulysses", 8, 0, 4, 1, 8}, // for the model to refuse
		{"hybrid", 4, 0, 4, 2, 2},  // less than all four
		{"hybrid", 8, 0, 8, 2, 4},
		{"hybrid", 12, 0, 9, 4, 3},
		{"hybrid", 12, 0, 8, 3, 4},
		{"hybrid", 12, 2, 8, 6, 2},
		{"hybrid", 5, 0, 5, 0, 0},
		{"hybrid", 4, 0, 1, 0, 0},
	} {
		ring, ulysses, err := parallel.SequenceDegrees(c.n, c.method, c.given, c.keys)
		if ring != c.ring || ulysses != c.ulysses || (err != nil) != (c.ring == 0) {
			t.Errorf("%+v: %d and %d, error %v", c, ring, ulysses, err)
		}
	}
}

// A layout is also one value, as in shardbook train --layout.
func ExampleParseLayout() {
	l, err := parallel.ParseLayout("pipe=2,data=2,tensor=2,zero=1")
	if err != nil {
		panic(err)
	}
	fmt.Println(l.Ranks(), "ranks of", l.PerRank(), "devices:", l)
	// Output:
	// 2 ranks of 4 devices: pipe=2,data=2,tensor=2,zero=1
}
