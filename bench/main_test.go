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

	"github.com/spf13/cobra"

	"github.com/shardbook/shardbook/lib/chart"
)

// envMain makes the test's binary the program itself.
const envMain = "SHARDBOOK_BENCH_MAIN"

// envPIDs names the file that the program's processes write their numbers into.
const envPIDs = "SHARDBOOK_BENCH_PIDS"

// TestMain makes the test's own binary a worker where it is started as one.
func TestMain(m *testing.M) {
	benchmarks = append(benchmarks, newFake)
	if os.Getenv(envSocket) != "" || os.Getenv(envMain) != "" {
		notePID()
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// fake is a benchmark of sleepers that take the time they are named for.
type fake struct{}

func newFake() benchmark { return fake{} }

func (fake) name() string                   { return "fake" }
func (fake) about() string                  { return "for tests" }
func (fake) flags(*cobra.Command)           {}
func (fake) charts([]record) []*chart.Chart { return nil }
func (fake) cases() ([]testCase, error) {
	return []testCase{{name: "one", params: 1, within: 0.25}}, nil
}
func (fake) implementations() []implementation {
	serve := func(s fakeSubject) func(context.Context) (subject, func(), error) {
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
		{name: "one", role: ours, serve: serve(fakeSubject{ms: 10, value: 1})},
		{name: "near", role: ours, serve: serve(fakeSubject{ms: 10, value: 1.25})},
		{name: "off", role: ours, serve: serve(fakeSubject{ms: 10, value: 1.5})},
		{name: "dying", role: ours, serve: serve(fakeSubject{at: 1, last: die})},
		{name: "mortal", role: ours, serve: serve(fakeSubject{ms: 10, at: thirdRound, last: die})},
		{name: "signaling", role: ours, serve: serve(fakeSubject{ms: 10, at: thirdRound, last: func() {
			syscall.Kill(os.Getppid(), syscall.SIGINT)
			select {} // and answers nobody any more
		}})},
		{name: "parent", role: variant, serve: serve(fakeSubject{ms: 10}), commands: startParent},
		{name: "stillborn", role: ours, serve: func(context.Context) (subject, func(), error) { return nil, nil, errors.New("no engine") }},
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
	value    float64 // 0 is none
	samples  int
	at       int // the number of the sample that is the last; 0 is none
	last     func()
}

func (s *fakeSubject) prepare([]byte) error { return s.prepared }
func (s *fakeSubject) finish() error        { return nil }
func (s *fakeSubject) facts() (f facts, err error) {
	if s.value != 0 {
		f.Values = []float64{s.value}
	}
	return f, nil
}
func (s *fakeSubject) sample(calls int) (float64, error) {
	if s.samples++; s.samples == s.at {
		s.last()
	}
	return s.ms, nil
}

// run runs a benchmark and returns its records.
func run(t *testing.T, b benchmark, s settings) ([]record, error) {
	t.Helper()
	report, err := newReport(b, false, "")
	if err != nil {
		t.Fatal(err)
	}
	err = s.run(t.Context(), b, report)
	return report.Records, err
}

func TestTurns(t *testing.T) {
	records, err := run(t, fake{}, settings{rounds: 3, only: []string{"good", "half", "bound", "unable", "missing"}})
	if err != nil {
		t.Fatal(err)
	}
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
		"wrong":        "one: wrong, rank 0, prepare: wrong result: 1, want 2",
		"dying":        "last words",
		"stillborn":    "bench: no engine",
		"silent":       "starting silent: it ended at once (exit status 3): no luck",
		"one,near,off": "one: off: wrong result: [1.5], want [1] within 0.25",
		"good,one,off": "one: off: wrong result",
		"nobody":       `--impls: no implementation "nobody", want some of good,`,
	} {
		_, err := run(t, fake{}, settings{rounds: 1, only: strings.Split(name, ",")})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", name, err, want)
		}
	}
}

func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	report, err := newReport(fake{}, false, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := (settings{rounds: 1, only: []string{"good"}}).run(ctx, fake{}, report); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want %v", err, context.Canceled)
	}
}

// TestEndsEarly ends a run in its third round, by a signal and by a worker that dies: what two rounds gave is printed
// as partial, the exit status says so, and no process is left, nor one that a worker started.
func TestEndsEarly(t *testing.T) {
	for name, why := range map[string]string{"signaling": "interrupt", "mortal": "last words"} {
		t.Run(name, func(t *testing.T) {
			pids, out := filepath.Join(t.TempDir(), "pids"), t.TempDir()
			program, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			var printed, said strings.Builder
			cmd := exec.CommandContext(t.Context(), program, "fake", "--impls=half,parent,"+name, "--rounds=9", "--out="+out)
			cmd.Env = append(os.Environ(), envMain+"=1", envPIDs+"="+pids)
			cmd.Stdout, cmd.Stderr = &printed, &said
			if err := cmd.Run(); cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != 1 {
				t.Errorf("it ended by %v, want exit status 1", err)
			}
			if want := "PARTIAL: the run ended early. The last case is one, of 2 rounds."; !strings.Contains(printed.String(), want) {
				t.Errorf("no %q in what it printed:\n%s", want, printed.String())
			}
			for _, want := range []string{"the results are partial, and not saved: one: ", why} {
				if !strings.Contains(said.String(), want) {
					t.Errorf("no %q in standard error:\n%s", want, said.String())
				}
			}
			lines, err := os.ReadFile(filepath.Join(out, linesFile))
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Count(string(lines), `"samples_ms":[`); got != 3 {
				t.Errorf("%d records with samples, want 3, in\n%s", got, lines)
			}
			if got := strings.Count(string(lines), `"samples_ms":[10,10]`); got != 2 {
				t.Errorf("%d records with two samples of 10 ms, want 2, in\n%s", got, lines)
			}
			text, err := os.ReadFile(pids)
			if err != nil {
				t.Fatal(err)
			}
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

// awaitEnd waits for a process to end that was sent a signal. One that has ended and that nobody waits for has as well.
func awaitEnd(t *testing.T, number string) {
	t.Helper()
	pid, err := strconv.Atoi(number)
	if err != nil {
		t.Fatal(err)
	}
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
		{"collectives --ops=all-sorts", "all-reduce"},
		{"collectives --impls=gloo", "add --peers"},
		{"collectives --peers --impls=jax --python=/no/such/python", "--python=/no/such/python"},
		{"collectives --worker=gloo", `no implementation "gloo"`},
		{"collectives --worker=group", envSocket},
		{"train --d=100 --heads=3", "heads"},
		{"train --batch=-1", "-1"},
		{"train --worker=jax", `no implementation "jax"`},
		{"collectives --sizes=1MB", `"1MB" is no size: want bytes, or a whole number of KiB`},
		{"collectives --sizes=4KiB,,1MiB", `"" is no size`},
		{"collectives --sizes=-4KiB", `"-4KiB" is no size`},
		{"collectives --sizes=9007199254740992KiB", "more than the 2⁶³-1 bytes"},
		{"collectives --sizes=99999999999999999999", "more than the 2⁶³-1 bytes"},
		{"collectives --sizes=1073741824GiB", "do not fit into the free memory: want at most"},
		{"flash --sizes=0", "0 tokens, want 1 to"},
		{"flash --threads=0", "--threads=0: want 1 or more"},
		{"flash --worker=torch", `no implementation "torch"`},
	} {
		cmd := newCommand()
		cmd.SetArgs(strings.Fields(test.args))
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want one with %q", test.args, err, test.want)
		}
	}
}

func TestPairRatios(t *testing.T) {
	mine := sampleTimes{1, 2, 4}
	got := pairRatios(mine, []sampleTimes{{2, 2, 8}, {3, 1, 4}})
	if want := []float64{2, 0.5, 1}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := pairRatios(mine, nil); got != nil {
		t.Errorf("with nobody to compare with: %v", got)
	}
	if m := median([]float64{5, 1, 3, 2}); m != 2.5 {
		t.Errorf("median %v, want 2.5", m)
	}
}

// TestReport compares with times made up so that the ratios can be seen.
func TestReport(t *testing.T) {
	out := t.TempDir()
	b := &collectives{ops: collectiveOps, sizes: sizes{bytes: []int64{1 << 20}}, ranks: 4}
	r, err := newReport(b, false, out)
	if err != nil {
		t.Fatal(err)
	}
	cases, err := b.cases()
	if err != nil {
		t.Fatal(err)
	}
	err = r.add(cases[0], []result{
		{implementation{name: "group", role: ours}, sampleTimes{1, 2, 1}, footprint{}},
		{implementation{name: "quick", role: peer}, sampleTimes{3, 3, 2}, footprint{}},
		{implementation{name: "slow", role: peer}, sampleTimes{4, 1, 4}, footprint{}},
	})
	if err == nil {
		err = r.finish(nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(out, linesFile))
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(text), "\n")
	var got record
	if err := json.Unmarshal([]byte(first), &got); err != nil {
		t.Fatal(err)
	}
	got.Load1, got.Samples = 0, nil
	want := record{
		Bench: "collectives", Case: "all-reduce 1 MiB", Impl: "group", Role: ours, MinMS: 1, MedianMS: 1, Rounds: 3,
		Ratio: 2, RatioMin: 0.5, MinRatio: 1, Best: "quick",
		// 2^20 bytes in 1 ms, times 2·3/4
		details: details{Op: "all-reduce", Bytes: 1 << 20, Ranks: 4, AlgBW: 1.049, BusBW: 1.573},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	page, err := os.ReadFile(filepath.Join(out, pageFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"2.00 (0.50)", "group against the best peer", "<script"} {
		if !strings.Contains(string(page), part) {
			t.Errorf("the page has no %q", part)
		}
	}
	for _, part := range []string{`src="http`, `href="http`} {
		if strings.Contains(string(page), part) {
			t.Errorf("the page has %q: it would need the network", part)
		}
	}
}
