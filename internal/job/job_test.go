package job

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/shardbook/shardbook/internal/flags"
	"github.com/shardbook/shardbook/lib/pipeline"
)

// parsed returns the job that flags set, and the flags.
func parsed(t *testing.T, line string) (*Job, *pflag.FlagSet) {
	t.Helper()
	j, set := New(), pflag.NewFlagSet("", pflag.ContinueOnError)
	j.Flags(set)
	err := set.Parse(strings.Fields(line))
	if err == nil {
		err = flags.Settle(set)
	}
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	j.normalize()
	return j, set
}

// What is left out of a resumed run's flags is as it was, unless it belongs to a way that is left.
func TestParallelResumed(t *testing.T) {
	const (
		bucket = "--data 4 --sync bucket --accumulate 2 --bucket-bytes 9 --compress-gradients bf16"
		third  = "--data 4 --sync ranks --accumulate 2 --zero 3 --prefetch 2 --shards 2"
		piped  = "--data 4 --sync ranks --pipe 2"
		split  = " --seq-parallel 4 --seq-method hybrid --seq-ulysses 2 --placement striped"
		shared = "--data 4 --sync spmd --tensor 2 --tensor-sequence" + split
	)
	for _, c := range []struct{ was, args, want string }{
		{bucket, "", bucket},
		{bucket, "--sync bucket --zero 0", bucket},
		{bucket, "--data 2 --bucket-bytes 1kB",
			"--data 2 --sync bucket --accumulate 2 --bucket-bytes 1000 --compress-gradients bf16"},
		{bucket, "--sync Naive", "--data 4 --sync naive --accumulate 2"},
		{bucket, "--zero 1", "--data 4 --sync spmd --accumulate 2 --zero 1"},
		{third, "", third},
		{third, "--zero 3 --prefetch 0", "--data 4 --sync ranks --accumulate 2 --zero 3 --shards 2"},
		{third, "--sync spmd", "--data 4 --sync spmd --accumulate 2 --zero 3 --prefetch 2"},
		{third, "--zero 2 --shards 4", "--data 4 --sync ranks --accumulate 2 --zero 2 --shards 4"},
		{third, "--zero 0", "--data 4 --sync bucket --accumulate 2"},
		{third, "--zero 0 --data 1 --accumulate 1", ""},
		{third, "--pipe 2 --zero 0", "--data 4 --sync ranks --pipe 2"},
		{third, "--tensor 2", "--data 4 --sync spmd --tensor 2"},
		{piped, "--data 1", "--data 1 --sync ranks --pipe 2 TEXT"},
		{piped, "--pipe 3 --chunks 2", "--data 4 --sync ranks --pipe 3 --chunks 2"},
		{piped, "--schedule GPipe --cut 2,2", piped + " --schedule gpipe --cut 2,2"},
		{piped, "--pipe 3 --schedule-file f", "--data 4 --sync ranks --pipe 3 --schedule-file f"},
		{piped, "--zero 2", "--data 4 --sync spmd --zero 2"},
		{piped, "--sync naive", "--data 4 --sync naive"},
		{piped, "--pipe 0", "--data 4 --sync bucket"},
		{piped, "--seq-parallel 2 --data 1", "--data 1 --sync spmd --seq-parallel 2"},
		{shared, "--data 1 --tensor 2", "--data 1 --sync spmd --tensor 2 --tensor-sequence" + split},
		{shared, "--tensor-sequence=false", "--data 4 --sync spmd --tensor 2" + split},
		{shared, "--seq-method Ulysses",
			"--data 4 --sync spmd --tensor 2 --tensor-sequence --seq-parallel 4 --seq-method ulysses"},
		{shared, "--tensor 4", "--data 4 --sync spmd --tensor 4"},
		{shared, "--tensor 1", "--data 4 --sync bucket"},
		{shared, "--tensor 2 --sync auto", "--data 4 --sync auto --tensor 2"},
		{shared, "--zero 1", "--data 4 --sync spmd --zero 1"},
		{shared, "--pipe 2", "--data 4 --sync ranks --pipe 2"},
		{"", "--zero 2 --offload-optimizer", "--data 1 --sync ranks --zero 2 --offload-optimizer"},
	} {
		was, _ := parsed(t, c.was)
		if c.was == piped {
			was.Parallel.ScheduleText = "schedule"
		}
		line, text := strings.CutSuffix(c.want, " TEXT")
		want, _ := parsed(t, line)
		if text {
			want.Parallel.ScheduleText = "schedule"
		}
		_, given := parsed(t, c.args)
		got, err := was.Parallel.resumed(given)
		got.Choose(false)
		if err != nil || got != want.Parallel {
			t.Errorf("%s with %q: %+v, error %v, want %+v", c.was, c.args, got, err, want.Parallel)
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

// layouts lists flags, the layout that they are, its pipeline, and how devices share sequences.
const layouts = `
--tensor 1 | 
--data 4 --sync spmd | data=4
--data 4 --accumulate 2 --bucket-bytes 1000 | replicas=4,microbatches=2,sync=bucket,bucket-bytes=1000
--data 4 --every 2 | replicas=4,sync=bucket,every=2
--data 2 --compress-gradients bf16 | replicas=2,sync=bucket
--data 4 --zero 3 --prefetch 1 --shards 2 | replicas=4,zero=3,prefetch=1,shards=2
--data 4 --zero 3 --shards 2 --sync spmd | replicas=2,data=2,zero=3
--data 2 --offload-optimizer | replicas=2,offload-optimizer,sync=bucket
--replicas 2 --tensor 2 --sync naive --accumulate 2 | replicas=2,tensor=2,microbatches=2,sync=naive
--data 2 --tensor 2 --tensor-sequence | data=2,tensor=2,tensor-sequence
--tensor 2 --tensor-partition | tensor=2,tensor-partition
--data 2 --seq-parallel 2 | data=2,seq-parallel=2; ring zigzag
--seq-parallel 2 --seq-ranks --zero 1 | seq-parallel=2,seq-ranks,zero=1; ring zigzag
--data 2 --seq-parallel 2 --seq-method ulysses | data=2,seq-parallel=2,seq-method=ulysses; ulysses
--seq-parallel 2 --seq-method allgather --placement striped | seq-parallel=2; gathered ring striped
--seq-parallel 4 --seq-method hybrid | seq-parallel=4,seq-method=hybrid,seq-ulysses=2; ulysses ring zigzag
--pipe 2 | ; 1f1b of 2, 4 micro-batches
--pipe 3 --schedule zb-h1 --microbatches 4 --cut 2,1,1 | cut=2:1:1; zb-h1 of 3, 4 micro-batches
--pipe 2 --schedule interleaved --chunks 2 --microbatches 2 | ; interleaved of 2, 2 micro-batches
--layout pipe=2,data=2,tensor=2,zero=1 | data=2,tensor=2,zero=1; 1f1b of 2, 4 micro-batches
--layout pipe=2,zero=3,prefetch=1,recompute-stages | zero=3,prefetch=1,recompute-stages; 1f1b of 2, 4 micro-batches
--layout data=4,pipe=3,cut=2:1:1,sync=naive | replicas=4,cut=2:1:1,sync=naive; 1f1b of 3, 4 micro-batches
`

// Flags reach the library's layout, one by one or as one value, and the model has the axes of shared sequences.
func TestLayout(t *testing.T) {
	for line := range strings.Lines(strings.TrimSpace(layouts)) {
		line, want, _ := strings.Cut(strings.TrimSpace(line), "|")
		j, _ := parsed(t, line)
		j.Parallel.Choose(false)
		l, err := j.Layout()
		if l.Microbatches == 1 {
			l.Microbatches = 0
		}
		got := l.String()
		if l.Plan != nil {
			got += fmt.Sprintf("; %s of %d, %d micro-batches", l.Plan.Name, len(l.Plan.Ranks), l.Plan.Micro)
		}
		if g := j.Parallel.sequenceGroup(); j.Parallel.SeqParallel > 0 {
			gather := map[bool]string{true: "gathered "}[g.Gather]
			axes := strings.Fields(fmt.Sprint(gather, g.Ulysses, " ", g.Ring, " ", g.Placement))
			got += "; " + strings.Join(axes, " ")
		}
		if err != nil || got != strings.TrimSpace(want) || (l.Hook != nil) != (j.Parallel.Compress != "") {
			t.Errorf("%s: %s, error %v, want %s", line, got, err, want)
		}
	}
}

// What two processes cannot do together is an error that says what to do.
func TestForProcesses(t *testing.T) {
	for line, want := range map[string]string{
		"--data 3":                "--data=3 ranks need 3 processes, and there are 2",
		"--pipe 3":                "2 processes are not a multiple of pipelines of --pipe=3",
		"--tensor 2 --replicas 3": "--replicas=3 ranks need 3 processes, and there are 2",
		"--sync spmd":             "choose --sync, one of",
	} {
		j, set := parsed(t, line)
		if err := j.Parallel.ForProcesses(2, set.Changed); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
}
