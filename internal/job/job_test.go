package job

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/shardbook/shardbook/internal/flags"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/expert"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/parallel"
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
		{shared, "--expert-parallel 2", "--data 4 --sync bucket --expert-parallel 2"},
		{"--data 4 --expert-parallel 2 --tensor 2", "--tensor 2", "--data 4 --expert-parallel 2 --tensor 2 --sync ranks"},
		{"--data 4 --expert-parallel 2 --tensor 2", "--expert-parallel 1", "--data 4 --sync bucket"},
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
--experts 8 --expert-parallel 1 |
--experts 8 --data 4 --expert-parallel 2 | replicas=4,expert-parallel=2,sync=bucket
--experts 8 --data 4 --expert-parallel 2 --pipe 2 | replicas=4,expert-parallel=2; 1f1b of 2, 4 micro-batches
--experts 8 --data 4 --expert-parallel 2 --zero 1 | data=4,expert-parallel=2,zero=1
--experts 8 --data 2 --expert-parallel 2 --tensor 2 | data=2,tensor=2,expert-parallel=2
--experts 8 --layout replicas=2,data=4,expert-parallel=4 | replicas=2,data=4,expert-parallel=4
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

// Experts get the defaults of their router and of the model, and the axes of the layout. A reference run has losses of
// its own.
func TestExperts(t *testing.T) {
	full := expert.Config{Experts: 8, PerToken: 2, Hidden: 512, Router: expert.Softmax, Normalize: true, Balance: 0.01}
	for line, change := range map[string]func(c *expert.Config){
		"--experts 8": func(*expert.Config) {},
		"--experts 8 --experts-per-token 2 --balance 0.01": func(*expert.Config) {},
		"--experts 1":              func(c *expert.Config) { c.Experts, c.PerToken, c.Normalize = 1, 1, false },
		"--experts 8 --hidden 300": func(c *expert.Config) { c.Hidden = 300 },
		"--experts 8 --expert-hidden 30 --z-loss 1e-3": func(c *expert.Config) { c.Hidden, c.ZLoss = 30, 1e-3 },
		"--experts 8 --balance 0 --capacity 1.25":      func(c *expert.Config) { c.Balance, c.Capacity = 0, 1.25 },
		"--experts 8 --router sigmoid": func(c *expert.Config) {
			c.Router, c.Balance, c.BiasRate = expert.Sigmoid, 0, 0.001
		},
		"--experts 8 --router sigmoid --balance 0.5 --bias-rate 0": func(c *expert.Config) {
			c.Router, c.Balance = expert.Sigmoid, 0.5
		},
		"--experts 8 --reference":                  func(c *expert.Config) { c.Hidden, c.Balance = 1024, 0 },
		"--experts 8 --reference --router sigmoid": func(c *expert.Config) { c.Hidden, c.Router, c.Balance = 1024, expert.Sigmoid, 0 },
		"":           func(c *expert.Config) { *c = expert.Config{} },
		"--tensor 2": func(c *expert.Config) { *c = expert.Config{} },
	} {
		want := full
		change(&want)
		j, set := New(), pflag.NewFlagSet("", pflag.ContinueOnError)
		j.Flags(set)
		must.Do(t, set.Parse(strings.Fields(line)))
		must.Do(t, j.Complete(set.Changed))
		before := *j
		must.Do(t, j.Complete(set.Changed))
		if j.Model.Experts != want || *j != before {
			t.Errorf("%q: %+v, want %+v", line, j.Model.Experts, want)
		}
		must.Do(t, j.Model.Validate())
	}
	for line, want := range map[string][]string{
		"--experts 8":                                         nil,
		"--experts 8 --tensor 2":                              {parallel.Tensor},
		"--experts 8 --data 2 --expert-parallel 2":            {parallel.Expert},
		"--experts 8 --data 2 --expert-parallel 2 --tensor 2": {parallel.Expert, parallel.Tensor},
		"--tensor 2":                                          nil,
	} {
		j, _ := parsed(t, line)
		m, _ := j.Parallel.model(j.Model).(gpt.Parallel)
		if !slices.Equal(m.Experts, want) {
			t.Errorf("%q: experts along %q, want %q", line, m.Experts, want)
		}
	}
	for line, want := range map[string]string{
		"--data 2 --expert-parallel 2":                         "--expert-parallel=2 changes nothing without --experts",
		"--experts 8 --data 4 --expert-parallel 3":             "--expert-parallel=3: want a divisor of --data=4",
		"--experts 8 --expert-parallel 2":                      "want a divisor of --data=1",
		"--experts 8 --data 2 --expert-parallel 2 --sync spmd": "--expert-parallel and --sync=spmd",
		"--router softmax":                                     "--router=softmax changes nothing without --experts",
		"--experts 8 --data 2 --expert-parallel 2 --every 2":   "--expert-parallel is 2, between ranks",
	} {
		j, _ := parsed(t, line)
		j.Parallel.Choose(false)
		if _, err := j.Layout(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", line, err, want)
		}
	}
	for _, line := range []string{"--balance 0.1", "--capacity 1", "--qk-norm"} {
		j, set := parsed(t, "--reference --experts 8 "+line)
		if err := j.Complete(set.Changed); err == nil || !strings.Contains(err.Error(), "--reference") {
			t.Errorf("%q in a reference run: %v", line, err)
		}
	}
}
