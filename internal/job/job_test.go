package job

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/shardbook/shardbook/internal/flags"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/sequence"
)

// What is left out of a resumed run's flags is as it was, unless it belongs to a way that is left.
func TestParallelResumed(t *testing.T) {
	bucket := Parallel{Data: 4, Sync: Bucket, Accumulate: 2, Every: 1, BucketBytes: 9, Compress: "bf16"}
	third := Parallel{Data: 4, Sync: Ranks, Accumulate: 2, Every: 1, Zero: 3, Prefetch: 2, Shards: 2}
	piped := Parallel{Data: 4, Sync: Ranks, Accumulate: 1, Every: 1, Pipe: 2, ScheduleText: "schedule"}
	shared := Parallel{Data: 4, Sync: SPMD, Accumulate: 1, Every: 1,
		Tensor: 2, TensorSequence: true, SeqParallel: 4, SeqMethod: "hybrid", SeqUlysses: 2, Placement: "striped"}
	for _, c := range []struct {
		was  Parallel
		args string
		want Parallel
	}{
		{bucket, "", bucket},
		{bucket, "--sync bucket --zero 0", bucket},
		{bucket, "--data 2 --bucket-bytes 1kB", Parallel{Data: 2, Sync: Bucket, Accumulate: 2, Every: 1,
			BucketBytes: 1000,
			Compress:    "bf16"}},
		{bucket, "--sync Naive", Parallel{Data: 4, Sync: Naive, Accumulate: 2, Every: 1}},
		{bucket, "--zero 1", Parallel{Data: 4, Sync: SPMD, Accumulate: 2, Every: 1, Zero: 1}},
		{third, "", third},
		{third, "--zero 3 --prefetch 0", Parallel{Data: 4, Sync: Ranks, Accumulate: 2, Every: 1, Zero: 3, Shards: 2}},
		{third, "--sync spmd", Parallel{Data: 4, Sync: SPMD, Accumulate: 2, Every: 1, Zero: 3, Prefetch: 2}},
		{third, "--zero 2 --shards 4", Parallel{Data: 4, Sync: Ranks, Accumulate: 2, Every: 1, Zero: 2, Shards: 4}},
		{third, "--zero 0", Parallel{Data: 4, Sync: Bucket, Accumulate: 2, Every: 1}},
		{third, "--zero 0 --data 1 --accumulate 1", OneDevice()},
		{third, "--pipe 2 --zero 0", Parallel{Data: 4, Sync: Ranks, Accumulate: 1, Every: 1, Pipe: 2}},
		{piped, "--data 1", Parallel{Data: 1, Sync: Ranks, Accumulate: 1, Every: 1, Pipe: 2, ScheduleText: "schedule"}},
		{piped, "--pipe 3 --chunks 2", Parallel{Data: 4, Sync: Ranks, Accumulate: 1, Every: 1, Pipe: 3, Chunks: 2}},
		{piped, "--schedule GPipe --cut 2,2", Parallel{Data: 4, Sync: Ranks, Accumulate: 1, Every: 1,
			Pipe: 2, PipeSchedule: "gpipe", Cut: "2,2"}},
		{piped, "--pipe 3 --schedule-file f", Parallel{Data: 4, Sync: Ranks, Accumulate: 1, Every: 1, Pipe: 3,
			File: "f"}},
		{piped, "--zero 2", Parallel{Data: 4, Sync: SPMD, Accumulate: 1, Every: 1, Zero: 2}},
		{piped, "--sync naive", Parallel{Data: 4, Sync: Naive, Accumulate: 1, Every: 1}},
		{piped, "--pipe 0", Parallel{Data: 4, Sync: Bucket, Accumulate: 1, Every: 1}},
		{third, "--tensor 2", Parallel{Data: 4, Sync: SPMD, Accumulate: 1, Every: 1, Tensor: 2}},
		{piped, "--seq-parallel 2 --data 1", Parallel{Data: 1, Sync: SPMD, Accumulate: 1, Every: 1, SeqParallel: 2}},
		{shared, "--data 1 --tensor 2", Parallel{Data: 1, Sync: SPMD, Accumulate: 1, Every: 1,
			Tensor: 2, TensorSequence: true, SeqParallel: 4, SeqMethod: "hybrid", SeqUlysses: 2, Placement: "striped"}},
		{shared, "--tensor-sequence=false", Parallel{Data: 4, Sync: SPMD, Accumulate: 1, Every: 1,
			Tensor: 2, SeqParallel: 4, SeqMethod: "hybrid", SeqUlysses: 2, Placement: "striped"}},
		{shared, "--seq-method Ulysses", Parallel{Data: 4, Sync: SPMD, Accumulate: 1, Every: 1,
			Tensor: 2, TensorSequence: true, SeqParallel: 4, SeqMethod: "ulysses"}},
		{shared, "--tensor 4", Parallel{Data: 4, Sync: SPMD, Accumulate: 1, Every: 1, Tensor: 4}},
		{shared, "--tensor 1", Parallel{Data: 4, Sync: Bucket, Accumulate: 1, Every: 1}},
		{shared, "--tensor 2 --sync auto", Parallel{Data: 4, Sync: Auto, Accumulate: 1, Every: 1, Tensor: 2}},
		{shared, "--zero 1", Parallel{Data: 4, Sync: SPMD, Accumulate: 1, Every: 1, Zero: 1}},
		{shared, "--pipe 2", Parallel{Data: 4, Sync: Ranks, Accumulate: 1, Every: 1, Pipe: 2}},
		{OneDevice(), "--zero 2 --offload-optimizer", Parallel{Data: 1, Sync: Ranks, Accumulate: 1, Every: 1, Zero: 2,
			Offload: true}},
	} {
		given, set := OneDevice(), pflag.NewFlagSet("", pflag.ContinueOnError)
		given.flags(set)
		if err := set.Parse(strings.Fields(c.args)); err != nil {
			t.Fatal(err)
		}
		given.normalize()
		got, err := c.was.resumed(set)
		got.Choose(false)
		if err != nil || got != c.want {
			t.Errorf("%+v with %q: %+v, error %v, want %+v", c.was, c.args, got, err, c.want)
		}
	}
}

func TestMicrobatches(t *testing.T) {
	for _, c := range []struct {
		kind              pipeline.Kind
		pipe, data, batch int
		want              int
	}{
		{"", 2, 1, 16, 4},
		{"", 4, 2, 16, 8},
		{"", 3, 1, 16, 8},
		{"", 3, 1, 7, 7},
		{"", 4, 1, 6, 6},
		{"", 1, 1, 16, 2},
		{"", 3, 1, 5, 5},
		{"", 2, 1, 1, 1},
		{"interleaved", 2, 1, 6, 6}, // a multiple of the ranks
		{"interleaved", 3, 1, 9, 9},
		{"dualpipe", 2, 1, 20, 4}, // an even number, at least twice the ranks
		{"pipedream-2bw", 4, 1, 6, 6},
	} {
		p := Parallel{Data: c.data, Pipe: c.pipe, PipeSchedule: c.kind}
		s, err := p.schedule(c.batch)
		if err != nil || s.Micro != c.want {
			t.Errorf("%+v: %d micro-batches, error %v", c, s.Micro, err)
		}
	}
}

// A layout has the devices that the flags say, and the model the axes of those that share sequences.
func TestShareLayout(t *testing.T) {
	for _, c := range []struct {
		share         Parallel
		ring, ulysses int
		group         sequence.Group
	}{
		{Parallel{Tensor: 2}, 1, 1, sequence.Group{}},
		{Parallel{SeqParallel: 2}, 2, 1, sequence.Group{Ring: "ring", Placement: sequence.Zigzag}},
		{Parallel{SeqParallel: 2, SeqMethod: "ulysses"}, 1, 2, sequence.Group{Ulysses: "ulysses"}},
		{Parallel{SeqParallel: 2, SeqMethod: "allgather", Placement: sequence.Striped}, 2, 1,
			sequence.Group{Ring: "ring", Gather: true, Placement: sequence.Striped}},
		{Parallel{Tensor: 2, SeqParallel: 4, SeqMethod: "hybrid"}, 2, 2,
			sequence.Group{Ring: "ring", Ulysses: "ulysses", Placement: sequence.Zigzag}},
	} {
		j := New()
		j.Parallel = c.share
		j.Parallel.Data = 3
		l, err := j.layout()
		if err != nil || l.Data != 3 || l.Ring != c.ring || l.Ulysses != c.ulysses || l.Tensor != c.share.Tensor ||
			l.Ranks() != 1 {
			t.Errorf("%+v: %+v, error %v", c.share, l, err)
		}
		if got := j.Parallel.sequenceGroup(); got != c.group {
			t.Errorf("%+v: %+v, want %+v", c.share, got, c.group)
		}
	}
}

// What two processes cannot do together is an error that says what to do.
func TestForProcesses(t *testing.T) {
	for text, want := range map[string]string{
		"--data 3":                "--data=3 ranks need 3 processes, and there are 2",
		"--pipe 3":                "2 processes are not a multiple of pipelines of --pipe=3",
		"--tensor 2 --replicas 3": "--replicas=3 ranks need 3 processes, and there are 2",
		"--sync spmd":             "choose --sync, one of",
	} {
		p, set := OneDevice(), pflag.NewFlagSet("", pflag.ContinueOnError)
		p.flags(set)
		if err := set.Parse(strings.Fields(text)); err != nil {
			t.Fatal(err)
		}
		if err := p.ForProcesses(2, set.Changed); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// One value sets several flags.
func TestLayoutFlag(t *testing.T) {
	for text, want := range map[string]Parallel{
		"pipe=2,data=2,tensor=2,zero=1": {Data: 2, Accumulate: 1, Every: 1, Pipe: 2, Tensor: 2, Zero: 1},
		"replicas=2,seq-parallel=4,seq-method=hybrid,seq-ulysses=2,zero=3,prefetch=1": {Data: 1, Accumulate: 1,
			Every:       1,
			Replicas:    2,
			SeqParallel: 4, SeqMethod: "hybrid", SeqUlysses: 2, Zero: 3, Prefetch: 1},
		"data=4,pipe=3,schedule=zb-h1,microbatches=6,cut=3:2:1,recompute-stages": {Data: 4, Accumulate: 1, Every: 1,
			Pipe:         3,
			PipeSchedule: "zb-h1", Microbatches: 6, Cut: "3,2,1", RecomputeStages: true},
		"data=2,sync=overlap,offload-optimizer,bucket-bytes=1000": {Data: 2, Accumulate: 1, Every: 1, Sync: Overlap,
			Offload:     true,
			BucketBytes: 1000},
	} {
		j, set := New(), pflag.NewFlagSet("", pflag.ContinueOnError)
		j.Flags(set)
		err := set.Parse([]string{"--layout", text})
		if err == nil {
			err = flags.Settle(set)
		}
		if err != nil || j.Parallel != want {
			t.Errorf("%s: %+v, error %v, want %+v", text, j.Parallel, err, want)
		}
	}
}
