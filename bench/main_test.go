package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/shardbook/shardbook/internal/kerneltest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/systest"
)

// envMain makes the test's binary the program itself.
const envMain = "SHARDBOOK_BENCH_MAIN"

// envPIDs names the file that the program's processes write their numbers into.
const envPIDs = "SHARDBOOK_BENCH_PIDS"

// TestMain makes the test's own binary a worker if it is started as one.
func TestMain(m *testing.M) {
	benchmarks = append(benchmarks, newFake, newStagedFake)
	if os.Getenv(envSocket) != "" || os.Getenv(envMain) != "" {
		notePID()
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// newFake is a benchmark of subjects that report fixed times.
func newFake() *benchmark {
	return &benchmark{name: "fake", about: "for tests", flags: func(*pflag.FlagSet) {},
		cases:           func() ([]testCase, error) { return []testCase{{name: "one", params: 1, within: 0.25}}, nil },
		implementations: fakes}
}

func fakes() []implementation {
	serve := func(s fakeSubject) server {
		return func(context.Context) (subject, func(), error) { return &s, func() {}, nil }
	}
	die := func() {
		fmt.Fprintln(os.Stderr, "last words")
		os.Exit(1)
	}
	const thirdRound = 3 + 3 // three samples go before the rounds
	return []implementation{
		{name: "good", role: ours, serve: serve(fakeSubject{ms: 10})},
		{name: "half", role: ours, serve: serve(fakeSubject{ms: 20})},
		{name: "bound", role: limit, serve: serve(fakeSubject{ms: 5})},
		{name: "unable", role: ours, serve: serve(fakeSubject{prepared: errUnsupported("not here")})},
		{name: "wrong", role: ours, serve: serve(fakeSubject{prepared: errors.New("wrong result: 1, want 2")})},
		{name: "one", role: ours, serve: serve(fakeSubject{ms: 10, values: []float64{1}})},
		{name: "near", role: ours, serve: serve(fakeSubject{ms: 10, values: []float64{1.25}})},
		{name: "off", role: ours, serve: serve(fakeSubject{ms: 10, values: []float64{1.5}})},
		{name: "dying", role: ours, serve: serve(fakeSubject{at: 1, last: die})},
		{name: "mortal", role: ours, serve: serve(fakeSubject{ms: 10, at: thirdRound, last: die})},
		{name: "signaling", role: ours, serve: serve(fakeSubject{ms: 10, at: thirdRound, last: func() {
			syscall.Kill(os.Getppid(), syscall.SIGINT)
			select {} // and answers no more
		}})},
		{name: "parent", role: variant, serve: serve(fakeSubject{ms: 10}), commands: startParent},
		{name: "stillborn", role: ours,
			serve: func(context.Context) (subject, func(), error) { return nil, nil, errors.New("no engine") }},
		{name: "silent", role: ours, commands: func(ctx context.Context, _ place) ([]*exec.Cmd, error) {
			return []*exec.Cmd{exec.CommandContext(ctx, "sh", "-c", "echo no luck >&2; exit 3")}, nil
		}},
		{name: "missing", role: ours, commands: func(context.Context, place) ([]*exec.Cmd, error) {
			return nil, errUnsupported("install it")
		}},
	}
}

// startParent starts a worker that has a child, which does not end with it.
func startParent(ctx context.Context, _ place) ([]*exec.Cmd, error) {
	const script = `sleep 3600 & echo $! >>"$` + envPIDs + `"; exec "$0" fake --worker=parent`
	program, err := os.Executable()
	return []*exec.Cmd{exec.CommandContext(ctx, "sh", "-c", script, program)}, err
}

type fakeSubject struct {
	ms       float64
	prepared error
	values   []float64
	samples  int
	at       int // the number of the sample that is the last; 0 is none
	last     func()
}

func (s *fakeSubject) prepare([]byte) (facts, error) { return facts{Values: s.values}, s.prepared }
func (s *fakeSubject) finish() error                 { return nil }
func (s *fakeSubject) sample(int) (float64, error) {
	if s.samples++; s.samples == s.at {
		s.last()
	}
	return s.ms, nil
}

// run runs a benchmark with the flags, and returns its records.
func run(ctx context.Context, b *benchmark, text string) ([]record, error) {
	var s settings
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	s.flags(flags, b)
	b.flags(flags)
	if err := flags.Parse(strings.Fields(text)); err != nil {
		return nil, err
	}
	r := newReport(b, s)
	err := s.run(ctx, b, r)
	return r.Records, err
}

// TestBenchmarks measures small cases of all of ours, and of the peers where they are installed. All results are
// checked against each other.
func TestBenchmarks(t *testing.T) {
	const small = " --rounds=1 --layers=1 --d=24 --heads=4 --seq=8 --batch=8"
	for _, test := range []struct {
		name  string
		fresh func() *benchmark
		flags string
		want  string // implementations of the first case, with their bases
		cases int
		full  bool // in the full tier only
		mpi   bool
	}{
		{"collectives", newCollectives, "--ranks=3 --sizes=48,12300 --rounds=2 " +
			"--impls=group,group-ring,xla,xla-8,memory-copy,memory-negate,memory-add",
			"group group-ring xla xla-8 memory-copy memory-negate memory-add", 10, false, false},
		{"collectives of peers", newCollectives, "--ranks=2 --sizes=4096 --rounds=1 --peers " +
			"--impls=mpi,gloo,openmpi,jax,jax-donate", "mpi gloo openmpi jax jax-donate", 5, false, true},
		{"train", newTraining, "--rounds=1 --layers=2 --d=128 --heads=4 --seq=64 --batch=8", "xla multiply-add", 1, false,
			false},
		{"train of peers", newTraining, "--rounds=2 --layers=2 --d=24 --heads=3 --seq=10 --batch=5 --peers",
			"xla jax jax-malloc torch multiply-add", 1, false, false},
		{"data", newData, small, "xla spmd-2:xla spmd-4:xla ranks-2:xla", 1, true, false},
		{"data of peers", newData, small + " --peers --impls=spmd-2,ddp-2,jax-4",
			"xla spmd-2:xla torch ddp-2:torch jax jax-4:jax", 1, false, false},
		{"hosts", newHosts, small + " --impls=mpi-tcp-2,rank", "xla mpi-tcp-2:xla rank:xla", 1, true, true},
		{"hosts of peers", newHosts, small + " --peers --impls=mpi-2,ddp-2", "xla mpi-2:xla torch ddp-2:torch", 1, false,
			true},
		{"tensor", newTensor, small + " --impls=tensor-2,sequence-2,ring-2", "tensor-2 sequence-2 ring-2", 1, false, false},
		{"tensor of peers", newTensor, small + " --peers --impls=tensor-2,jax-2,tensor-4,jax-4", "tensor-2 jax-2", 2, false,
			false},
		{"zero", newZero, small + " --impls=ranks-zero3-2,zero3-2", "ranks-2 ranks-zero3-2:ranks-2 spmd-2 zero3-2:spmd-2", 1,
			false, false},
		{"zero of peers", newZero, small + " --peers --impls=zero2-4,fsdp-2,jax-zero1-4,jax-fsdp-4",
			"ddp-2 fsdp-2:ddp-2 spmd-4 jax-4 jax-zero1-4:jax-4 jax-fsdp-4:jax-4 zero2-4:spmd-4", 1, false, false},
		{"zero-memory", newZeroMemory, "--layers=3 --d=8", "zero3", 1, false, false},
		{"zero-memory of peers", newZeroMemory, "--layers=2 --d=16 --peers", "zero3 jax-fsdp jax-fsdp-scan", 1, false, false},
		{"flash", newFlash, "--sizes=400 --threads=1 --rounds=1", "flash blocks plain", 2, false, false},
		{"flash of peers", newFlash, "--sizes=300 --rounds=1 --peers",
			"flash blocks plain torch jax-naive jax-nn jax-chunked", 2, false, false},
		{"gpu", newGPU, "--device=cpu --tiny --sizes=4096 --rounds=1 --peers=false", "xla", 4, false, false},
		{"gpu of peers", newGPU, "--device=cpu --tiny --sizes=4096 --rounds=1 --precision=fp32 " +
			"--impls=xla,jax,torch,flash,jax-cudnn,torch-cudnn", "xla jax torch", 4, false, false},
		{"gpu of peers in bf16", newGPU, "--device=cpu --tiny --sizes=4096 --rounds=1 " +
			"--impls=xla,jax,torch-compile,torch,flash,jax-cudnn,torch-cudnn,torch-flash", "xla jax torch-compile torch", 4, true,
			false},
		{"pipeline", newPipeline, "--d=6 --batch=8 --microbatches=4 --ms=0.5 --rounds=1", "simulated player-4:simulated", 9,
			false, false},
		{"pipeline of peers", newPipeline, "--d=6 --batch=8 --microbatches=4 --ms=1 --rounds=1 --peers",
			"simulated player-4:simulated torch-player-4:simulated", 9, false, false},
		{"cell", newCell, "--rounds=1 --impls=println", "println", 1, false, false},
		{"cell on XLA", newCell, "--rounds=1", "println xla:println chart:println", 1, true, false},
		{"cell of JAX", newCell, "--rounds=1 --peers --impls=jax", "println jax:println", 1, true, false},
		{"cell in Rust", newCell, "--rounds=1 --peers --impls=evcxr,evcxr-matmul", "println evcxr evcxr-matmul:println", 1,
			true, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.full {
				systest.FullOnly(t, test.name)
			}
			if strings.Contains(test.name, "of peers") || strings.Contains(test.flags, "--peers") && !strings.Contains(
				test.flags, "--peers=false") {
				if _, err := peersPython(os.Getenv(envPython)); err != nil {
					systest.Skip(t, systest.NoPeers, err)
				}
			}
			if test.mpi {
				systest.OpenMPI(t)
			}
			if strings.HasPrefix(test.name, "cell") {
				kerneltest.Ready(t)
			}
			if strings.Contains(test.flags, evcxrName) {
				if _, err := evcxrEnv(t.Context(), place{}); err != nil {
					systest.Skip(t, systest.NoPeers, err)
				}
			}
			b := test.fresh()
			records := must.Get(run(t.Context(), b, test.flags))(t)
			var cases, first []string
			for _, r := range records {
				if !slices.Contains(cases, r.Case) {
					cases = append(cases, r.Case)
				}
				if r.Case == records[0].Case {
					first = append(first, strings.TrimSuffix(r.Impl+":"+r.Over, ":"))
				}
				if hasBase := r.Over != ""; hasBase != (r.Cost > 0) || b.untimed != (r.MedianMS <= 0) {
					t.Errorf("%s of %s: %+v", r.Impl, r.Case, r)
				}
				if r.Role != limit {
					checkMemory(t, r)
				}
				trains := b.name == "train" || b.name == "tensor"
				if trains && (r.TokensPerSecond <= 0 || (r.FirstMS > 0) != (r.Role != limit)) {
					t.Errorf("%s of %s: %g tokens/s, a first step of %g ms", r.Impl, r.Case, r.TokensPerSecond, r.FirstMS)
				}
			}
			if got := strings.Join(first, " "); got != test.want || len(cases) != test.cases {
				t.Errorf("measured %s in %d cases; want %s in %d", got, len(cases), test.want, test.cases)
			}
			if text := tableText(records); strings.Contains(text, "NaN") {
				t.Error(text)
			}
		})
	}
}

// checkMemory checks what is known of a record's memory.
func checkMemory(t *testing.T, r record) {
	t.Helper()
	least, most := int64(0), int64(1)<<40
	switch {
	case r.Bench == "train" && r.Impl == "torch":
		least, most = 0, 0
		if r.PeakRSS <= 0 {
			t.Errorf("torch has no peak: %+v", r.footprint)
		}
	case r.Bench == "train":
		least = 1
	case r.Bench == "zero-memory":
		least = r.GradientBytes
	case r.Bench == "flash" && r.Impl != "torch":
		least = 1
		scores := flashCase{Tokens: r.Tokens, Heads: flashHeads}.scores()
		if r.Impl == "plain" {
			least = scores
		} else if r.Impl == "flash" {
			most = scores - 1
		}
	}
	if r.Temporary < least || r.Temporary > most {
		t.Errorf("%s of %s: %d bytes of temporary memory, want %d to %d", r.Impl, r.Case, r.Temporary, least, most)
	}
}

func TestTurns(t *testing.T) {
	records := must.Get(run(t.Context(), newFake(), "--rounds=3 --impls=good,half,bound,unable,missing"))(t)
	var got []string
	for _, r := range records {
		got = append(got, fmt.Sprint(r.Impl, " ", r.MinMS, " ", r.MedianMS, " ", r.Rounds, " ", r.OfLimit))
	}
	want := []string{"good 10 10 3 0.5", "half 20 20 3 0.25", "bound 5 5 3 0"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestFailures(t *testing.T) {
	for name, want := range map[string]string{
		"wrong":        "one: wrong, prepare: wrong result: 1, want 2",
		"dying":        "last words",
		"stillborn":    "bench: no engine",
		"silent":       "starting silent: it ended at once (exit status 3): no luck",
		"one,near,off": "one: off: wrong result: [1.5], want [1] within 0.25",
		"good,one,off": "one: off: wrong result",
		"nobody":       `--impls: no implementation "nobody", want some of good,`,
	} {
		_, err := run(t.Context(), newFake(), "--rounds=1 --impls="+name)
		must.Refuse(t, name, err, want)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := run(ctx, newFake(), "--rounds=1 --impls=good"); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want %v", err, context.Canceled)
	}
}

// TestEndsEarly ends a run in its third round, by a signal and by a worker that dies: what two rounds gave is printed
// as partial, the exit status says so, and no process is left, nor one that a worker started.
func TestEndsEarly(t *testing.T) {
	for name, why := range map[string]string{"signaling": "interrupt", "mortal": "last words"} {
		t.Run(name, func(t *testing.T) {
			pids, out := filepath.Join(t.TempDir(), "pids"), t.TempDir()
			program := must.Get(os.Executable())(t)
			var lines, said strings.Builder
			cmd := exec.CommandContext(t.Context(), program, "fake", "--impls=half,parent,"+name, "--rounds=9",
				"--json", "--save="+out)
			cmd.Env = append(os.Environ(), envMain+"=1", envPIDs+"="+pids)
			cmd.Stdout, cmd.Stderr = &lines, &said
			if err := cmd.Run(); cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != 1 {
				t.Errorf("it ended by %v, want exit status 1", err)
			}
			for _, want := range []string{"PARTIAL: the run ended early. The last case is one, of 2 rounds.",
				"the results are partial, and not saved: one: ", why} {
				if !strings.Contains(said.String(), want) {
					t.Errorf("no %q in standard error:\n%s", want, said.String())
				}
			}
			if saved, _ := os.ReadDir(out); len(saved) > 0 {
				t.Errorf("it saved %v", saved)
			}
			all := strings.Count(lines.String(), `"samples_ms":[`)
			two := strings.Count(lines.String(), `"samples_ms":[10,10]`)
			if all != 3 || two != 2 {
				t.Errorf("%d records, %d with two samples of 10 ms, want 3 and 2, in\n%s", all, two, lines.String())
			}
			text := must.Get(os.ReadFile(pids))(t)
			numbers := strings.Fields(string(text))
			if len(numbers) != 5 { // the program, three workers, and the child of one
				t.Errorf("%d processes, want 5", len(numbers))
			}
			for _, number := range numbers {
				awaitEnd(t, number)
			}
		})
	}
}

// notePID writes this process's number where it is asked to.
func notePID() {
	f, err := os.OpenFile(os.Getenv(envPIDs), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		fmt.Fprintln(f, os.Getpid())
		f.Close()
	}
}

// awaitEnd waits for a process to end, also as a zombie.
func awaitEnd(t *testing.T, number string) {
	t.Helper()
	pid := must.Get(strconv.Atoi(number))(t)
	for range 1000 {
		stat, _ := os.ReadFile("/proc/" + number + "/stat")
		if syscall.Kill(pid, 0) == syscall.ESRCH || strings.Contains(string(stat), ") Z ") {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("process %s is left", number)
	syscall.Kill(pid, syscall.SIGKILL)
}

func TestBadArguments(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"nonsense", "nonsense"},
		{"collectives --rounds=0", "--rounds=0"},
		{"collectives --ranks=1", "--ranks=1: want 2 or more"},
		{"collectives --sizes=1000", "multiple of 16"},
		{"collectives --sizes=1125899906842624", "do not fit into the free memory: want at most"},
		{"collectives --ops=all-sorts", "all-reduce"},
		{"collectives --impls=gloo", "add --peers"},
		{"collectives --peers --impls=jax --python=/no/such/python", "--python=/no/such/python"},
		{"collectives --worker=gloo", `no implementation "gloo"`},
		{"collectives --worker=group", envSocket},
		{"train --d=100 --heads=3", "heads"},
		{"train --batch=-1", "-1"},
		{"train --worker=jax", `no implementation "jax"`},
		{"data --batch=6", "a batch of 6 sequences, want a multiple of 4"},
		{"hosts --batch=5", "a batch of 5 sequences, want a multiple of 2"},
		{"tensor --d=24 --heads=6", "6 heads, want a multiple of 4"},
		{"tensor --seq=12", "sequences of 12, want a multiple of 8"},
		{"zero-memory --d=6", "--d=6: want a multiple of 4"},
		{"zero-memory --layers=0", "--layers: 0 blocks, want 1 to 4096"},
		{"pipeline --layers=12", "--layers=12: want a multiple of 8"},
		{"pipeline --d=0", "--d=0: want 1 to 4096"},
		{"pipeline --microbatches=6", "--microbatches=6: want a multiple of 4"},
		{"pipeline --batch=6 --microbatches=4", "--batch=6: want a multiple of the 4 micro-batches"},
		{"pipeline --ms=NaN", "--ms=NaN: want more than 0, at most 1000"},
		{"flash --sizes=0", "0 tokens, want 1 to"},
		{"flash --threads=0", "--threads=0: want 1 or more"},
		{"flash --worker=torch", `no implementation "torch"`},
		{"gpu --device=tpu", `--device: "tpu", want cuda or cpu`},
		{"gpu --only=train,nothing", `--only: "nothing", want train or attention`},
		{"gpu --models=bert", `--models: "bert", want gpt2 or llama`},
		{"gpu --batch=-1", "--batch=-1: want 1 to 4096 sequences"},
		{"gpu --sizes=0", "0 tokens, want 1 to"},
		{"gpu --precision=fp8", `--precision: "fp8", want bf16 or fp32`},
		{"gpu --out=/no/such/folder/file --peers=false", "--out: open /no/such/folder/file"},
		{"gpu --worker=jax", `no implementation "jax"`},
		{"pack", "accepts 1 arg"},
		{"rerun", "requires at least 1 arg"},
		{"rerun 00-devices --rounds=0", "--rounds=0: want 1 or more"},
		{"rerun nonsense", `no notebook "nonsense"`},
	} {
		cmd := newCommand()
		cmd.SetArgs(strings.Fields(test.args))
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want one with %q", test.args, err, test.want)
		}
	}
}

// TestCases looks at the cases by default, or with a flag.
func TestCases(t *testing.T) {
	const small, large = "layers 2, width 128, heads 4, 8×64 tokens", "layers 4, width 256, heads 8, 16×256 tokens"
	for _, test := range []struct {
		fresh func() *benchmark
		flags string
		want  string
	}{
		{newTraining, "", small + "; " + large + "; " + gpt2Size.String()},
		{newTraining, "--layers=1 --d=8 --heads=2 --seq=5 --batch=3", "layers 1, width 8, heads 2, 3×5 tokens"},
		{newHosts, "--small", small},
		{newTensor, "", small + ", 2 devices; " + small + ", 4 devices; " + large + ", 2 devices; " + large + ", 4 devices"},
		{newFlash, "--sizes=64,1048576", "forward, 64 tokens; forward, 1048576 tokens; " +
			"forward+backward, 64 tokens; forward+backward, 1048576 tokens"},
	} {
		b := test.fresh()
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		b.flags(flags)
		must.Do(t, flags.Parse(strings.Fields(test.flags)))
		cases := must.Get(b.cases())(t)
		var names []string
		for _, c := range cases {
			names = append(names, c.name)
			switch params := c.params.(type) {
			case trainParams:
				if known := !strings.Contains(test.flags, "--layers"); known != (len(c.want) == trainFirst) {
					t.Errorf("%s %s: %d losses to compare with", b.name, c.name, len(c.want))
				}
			case flashCase:
				if fits := params.Tokens == 64; params.Fits != fits { // the others' scores take 32 TiB
					t.Errorf("%s: it fits: %v", c.name, params.Fits)
				}
			}
		}
		if got := strings.Join(names, "; "); got != test.want {
			t.Errorf("%s %s: cases %s, want %s", b.name, test.flags, got, test.want)
		}
	}
}

// TestCompare compares made-up times.
func TestCompare(t *testing.T) {
	got := compare("some", testCase{name: "one"}, []result{
		{implementation{name: "xla", role: base}, sampleTimes{10, 20, 40}, facts{}},
		{implementation{name: "spmd-2", role: ours, over: "xla"}, sampleTimes{20, 60, 40}, facts{
			FirstMS: 7}}, // 2, 3, 1
		{
			implementation{name: "ddp-2", role: peer, over: "torch"},
			sampleTimes{400, 120, 100},
			facts{FirstMS: 14},
		}, // 4, 1.5, 1
		{implementation{name: "torch", role: base}, sampleTimes{100, 80, 100}, facts{}},
		{implementation{name: "jax-2", role: peer, over: "missing"}, sampleTimes{1, 1, 1}, facts{}},
		{
			implementation{name: "a", role: ours, class: "c"},
			sampleTimes{1, 2, 4},
			facts{Memory: footprint{Arguments: 4, Temporary: 8}, FirstMS: 10},
		},
		{implementation{name: "b", role: peer, class: "c"}, sampleTimes{2, 2, 8}, facts{
			Memory: footprint{Arguments: 4, Temporary: 16, Outputs: 4}, FirstMS: 40}},
		{implementation{name: "d", role: peer, class: "c"}, sampleTimes{3, 1, 4}, facts{
			Memory: footprint{PeakRSS: 1 << 30}, FirstMS: 5}},
		{implementation{name: "e", role: limit, class: "c"}, sampleTimes{1, 1, 1}, facts{}},
	})
	for i, want := range []record{
		{MinMS: 10, MedianMS: 20},
		// Ratios of 4/2, 1.5/3 and 1/1; the peer's cost of its least times is 100 over 80.
		{MinMS: 20, MedianMS: 40, Over: "xla", Cost: 2, MinCost: 2, Ratio: 1, RatioMin: 0.5, MinRatio: 0.625, Best: "ddp-2",
			FirstMS: 7},
		{MinMS: 100, MedianMS: 120, Over: "torch", Cost: 1.5, MinCost: 1.25, Ratio: 1, RatioMin: 0.5, MinRatio: 0.625,
			FirstMS: 14},
		{MinMS: 80, MedianMS: 100},
		{MinMS: 1, MedianMS: 1},
		// The best peers' times are 2, 1 and 4.
		{MinMS: 1, MedianMS: 2, Ratio: 1, RatioMin: 0.5, MinRatio: 1, Best: "b", OfLimit: 0.5,
			FirstMS: 10, FirstRatio: 0.5, footprint: footprint{Arguments: 4, Temporary: 8}, TempRatio: 2,
			MemoryRatio: 2},
		{MinMS: 2, MedianMS: 2, Ratio: 2, RatioMin: 1, MinRatio: 2,
			FirstMS: 40, FirstRatio: 4, footprint: footprint{Arguments: 4, Temporary: 16, Outputs: 4}, TempRatio: 2,
			MemoryRatio: 2},
		{MinMS: 1, MedianMS: 3, Ratio: 1, RatioMin: 0.5, MinRatio: 1, FirstMS: 5, FirstRatio: 0.5,
			footprint: footprint{PeakRSS: 1 << 30}},
		{MinMS: 1, MedianMS: 1},
	} {
		r := got[i]
		want.Bench, want.Case, want.Impl, want.Class = "some", "one", r.Impl, r.Class
		want.Samples, want.Rounds = r.Samples, 3
		if want.Role = r.Role; !reflect.DeepEqual(r, want) {
			t.Errorf("got  %+v\nwant %+v", r, want)
		}
	}
	if m := median([]float64{5, 1, 3, 2}); m != 2.5 {
		t.Errorf("median %v, want 2.5", m)
	}
}

// TestReport writes made-up times as JSON.
func TestReport(t *testing.T) {
	out := t.TempDir()
	b := newCollectives()
	r := newReport(b, settings{save: out})
	c := collectiveCase{Op: "all-reduce", Bytes: 1 << 20, Ranks: 4}
	err := r.add(testCase{name: "all-reduce 1 MiB", describe: c.describe}, []result{
		{implementation{name: "group", role: ours}, sampleTimes{1, 2, 1}, facts{}},
		{implementation{name: "quick", role: peer}, sampleTimes{3, 3, 2}, facts{}},
		{implementation{name: "slow", role: peer}, sampleTimes{4, 1, 4}, facts{}},
	})
	if err == nil {
		err = r.finish(nil)
	}
	must.Do(t, err)
	text := must.Get(os.ReadFile(filepath.Join(out, r.fileName())))(t)
	var saved outcome
	if err := json.Unmarshal(text, &saved); err != nil || !reflect.DeepEqual(saved, r.outcome) {
		t.Errorf("saved %+v, %v; want %+v", saved, err, r.outcome)
	}
	// 2^20 bytes in 1 ms, times 2·3/4
	want := details{Op: "all-reduce", Bytes: 1 << 20, Ranks: 4, AlgBW: 1.049, BusBW: 1.573}
	if got := saved.Records[0].details; got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}
