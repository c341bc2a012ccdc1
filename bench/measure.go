package main

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/shardbook/shardbook/lib/notebook"
)

// scripts are the peers' programs.
//
//go:embed peers/*.py
var scripts embed.FS

// settings are the flags that every benchmark has.
type settings struct {
	peers  bool
	only   []string // names of implementations; none means all
	rounds int
	python string
}

const (
	// sampleMS is how long one sample should take: long enough that a scheduler's
	// hiccup does not decide it, short enough that a round's samples are neighbours.
	sampleMS = 10

	// maxCalls bounds the calls of one sample.
	maxCalls = 2000

	// slowCall is how long a call takes that needs no others before it: neither to wake
	// up, nor to find how many make a sample.
	slowCall = 500 * time.Millisecond
)

// run measures a benchmark's cases and reports each as soon as it is done.
func (s settings) run(ctx context.Context, b benchmark, report *report) error {
	if _, ok := b.(untimed); !ok && s.rounds < 1 {
		return fmt.Errorf("--rounds=%d: want 1 or more", s.rounds)
	}
	cases, err := b.cases()
	if err != nil {
		return err
	}
	implementations, err := s.choose(b)
	if err != nil {
		return err
	}
	p, clean, err := s.place(implementations)
	if err != nil {
		return err
	}
	defer clean()
	report.begin(ctx)

	bar := notebook.NewBar(b.name(), len(implementations)+len(cases)*s.rounds)
	defer bar.Done()
	workers, err := startWorkers(ctx, implementations, b, p, func(name string) { bar.Step("started %s", name) })
	defer stopWorkers(workers)
	if err != nil {
		return err
	}
	for _, w := range workers {
		report.Versions[w.name] = w.versions
	}
	for _, c := range cases {
		results, err := measure(ctx, c, workers, s.rounds, func() { bar.Step("%s", c.name) })
		if addErr := report.add(c, results); addErr != nil {
			return errors.Join(err, addErr)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return nil
}

// choose returns the implementations that the flags ask for.
func (s settings) choose(b benchmark) ([]implementation, error) {
	var names []string
	asked := map[string]bool{}
	for _, im := range b.implementations() {
		if im.role == base {
			continue
		}
		names = append(names, im.name)
		if len(s.only) > 0 && !slices.Contains(s.only, im.name) || im.role == peer && !s.peers {
			continue
		}
		asked[im.name] = true
		asked[im.over] = true
	}
	chosen := slices.DeleteFunc(b.implementations(), func(im implementation) bool { return !asked[im.name] })
	for _, name := range s.only {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("--impls: no implementation %q, want some of %s", name, strings.Join(names, ","))
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("--impls=%s names peers only: add --peers", strings.Join(s.only, ","))
	}
	return chosen, nil
}

// place makes the folder that the workers need.
func (s settings) place(implementations []implementation) (p place, clean func(), err error) {
	if slices.ContainsFunc(implementations, func(im implementation) bool { return im.role == peer }) {
		if p.python, err = peersPython(s.python); err != nil {
			return p, nil, err
		}
	}
	if p.dir, err = os.MkdirTemp("", "bench-"); err != nil {
		return p, nil, err
	}
	clean = func() { os.RemoveAll(p.dir) }
	files, err := fs.Sub(scripts, "peers")
	if err == nil {
		p.scripts = p.dir + "/peers"
		err = os.CopyFS(p.scripts, files)
	}
	if err != nil {
		clean()
	}
	return p, clean, err
}

// result is what one implementation took for one case.
type result struct {
	implementation
	times sampleTimes
	footprint
}

// measure takes samples of a case from all workers in turns. Each round begins
// with another worker. Workers that cannot do the case are left out. Where it fails in
// a round, the results are those of the rounds before.
func measure(ctx context.Context, c testCase, workers []*worker, rounds int, onRound func()) ([]result, error) {
	params, err := json.Marshal(c.params)
	if err != nil {
		return nil, err
	}
	var able []*worker
	var calls []int
	var results []result
	want := c.want
	for _, w := range workers {
		if c.class != "" && c.class != w.class {
			continue
		}
		prepared, err := w.ask(ctx, request{Do: "prepare", Case: params})
		var unsupported errUnsupported
		if errors.As(err, &unsupported) {
			fmt.Fprintf(os.Stderr, "bench: %s: without %s: %v\n", c.name, w.name, unsupported)
			continue
		} else if err != nil {
			return nil, err
		}
		if want == nil {
			want = prepared.Values
		}
		if err := agree(prepared.Values, want, c.within); err != nil {
			return nil, fmt.Errorf("%s: %w", w.name, err)
		}
		if c.hear != nil {
			c.hear(w.name, prepared.Values)
		}
		n := 0
		if rounds > 0 {
			if n, err = w.sampleCalls(ctx); err != nil {
				return nil, err
			}
		}
		able = append(able, w)
		calls = append(calls, n)
		results = append(results, result{w.implementation, make(sampleTimes, rounds), prepared.Memory})
	}
	for round := range rounds {
		for i := range able {
			k := (round + i) % len(able)
			a, err := able[k].ask(ctx, request{Do: "sample", Calls: calls[k]})
			if err != nil {
				return cut(results, round), err
			}
			results[k].times[round] = math.Round(a.MS*1e6) / 1e6 // no clock tells less than a nanosecond
		}
		onRound()
	}
	for _, w := range able {
		if _, err := w.ask(ctx, request{Do: "finish"}); err != nil {
			return nil, err
		}
	}
	return results, nil
}

// cut returns the results of the first rounds, none where there is none.
func cut(results []result, rounds int) []result {
	if rounds == 0 {
		return nil
	}
	for i := range results {
		results[i].times = results[i].times[:rounds]
	}
	return results
}

// sampleCalls finds how many calls of the case prepared make a sample.
func (w *worker) sampleCalls(ctx context.Context) (calls int, err error) {
	calls = 1
	for range 3 { // the first sample is often slow
		a, err := w.ask(ctx, request{Do: "sample", Calls: calls})
		if err != nil {
			return 0, err
		}
		calls = max(1, int(min(sampleMS/a.MS, maxCalls)))
		if a.MS > slowCall.Seconds()*1e3 {
			break
		}
	}
	return calls, nil
}

// agree compares results with what they must be.
func agree(got, want []float64, within float64) error {
	close := func(a, b float64) bool { return math.Abs(a-b) <= within }
	if !slices.EqualFunc(got, want, close) {
		return fmt.Errorf("wrong result: %v, want %v within %v", got, want, within)
	}
	return nil
}
