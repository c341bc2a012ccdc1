package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/shardbook/shardbook/lib/notebook"
)

// settings are the flags that every benchmark has.
type settings struct {
	peers, json bool
	save        string   // a folder; "" is none
	out         string   // a file; "" is none
	only        []string // names of implementations; none means all
	rounds      int
	python      string
}

func (s *settings) flags(flags *pflag.FlagSet, b *benchmark) {
	flags.BoolVar(&s.peers, "peers", b.peers, "measure the peers too, and print ratios")
	flags.BoolVar(&s.json, "json", false, "print JSON lines, one for each case and implementation")
	flags.StringVar(&s.save, "save", "",
		"`folder` to write all that was measured into, as JSON; without a value bench/results")
	flags.Lookup("save").NoOptDefVal = "bench/results"
	flags.StringVar(&s.out, "out", "", "`file` to append JSON lines to as they come, so that a run that is cut off "+
		"leaves what it has measured")
	flags.StringSliceVar(&s.only, "impls", nil, "implementations to measure (default all)")
	if !b.untimed {
		flags.IntVar(&s.rounds, "rounds", cmp.Or(b.rounds, 15), "samples of each case and implementation")
	}
	flags.StringVar(&s.python, "python", os.Getenv(envPython),
		"Python interpreter that has the peers (default $"+envPython+", else what \"bench install\" installed)")
}

const (
	// defaultSampleMS is how long one sample should take: long enough that a scheduler's
	// hiccup does not decide it, short enough that a round's samples are neighbours.
	defaultSampleMS = 10

	// maxCalls bounds the calls of one sample.
	maxCalls = 2000

	// slowCall is the duration from which on a call needs no warm-up call before it, and is a sample by itself.
	slowCall = 500 * time.Millisecond
)

// run measures a benchmark's cases and reports each as soon as it is done.
func (s settings) run(ctx context.Context, b *benchmark, report *report) error {
	if !b.untimed && s.rounds < 1 {
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
	p, err := s.place(implementations)
	if err != nil {
		return err
	}
	defer os.RemoveAll(p.dir)
	if err := report.begin(ctx); err != nil {
		return err
	}
	if b.staged {
		return s.runStaged(ctx, b, p, report, cases, implementations)
	}
	bar := notebook.NewBar(b.name, len(implementations)+len(cases)*s.rounds)
	defer bar.Done()
	workers, err := startWorkers(ctx, implementations, b, p, func(name string) { bar.Step("started %s", name) })
	defer stopWorkers(workers)
	if err != nil {
		return err
	}
	report.note(workers)
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
func (s settings) choose(b *benchmark) ([]implementation, error) {
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

// result is what one implementation took for one case.
type result struct {
	implementation
	times sampleTimes
	facts
}

// measure takes samples of a case from all workers in turns. Each round begins with another worker. Workers that cannot
// do the case are left out. If a round fails, the results are those of the rounds before it.
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
		}
		n := 0
		if err == nil {
			if w.role == limit { // it computes nothing
				prepared.Values = want
			}
			if want == nil {
				want = prepared.Values
			}
			if err = agree(prepared.Values, want, c.within); err != nil {
				err = fmt.Errorf("%s: %w", w.name, err)
			}
		}
		if err == nil && rounds > 0 {
			n, err = w.sampleCalls(ctx, cmp.Or(c.sampleMS, defaultSampleMS))
		}
		if err != nil {
			if c.failed == nil || ctx.Err() != nil {
				return nil, err
			}
			c.failed(err)
			continue
		}
		able, calls = append(able, w), append(calls, n)
		results = append(results, result{w.implementation, nil, prepared.facts})
	}
	for round := range rounds {
		times := make(sampleTimes, len(able))
		for i := range able {
			k := (round + i) % len(able)
			a, err := able[k].ask(ctx, request{Do: "sample", Calls: calls[k]})
			if err != nil {
				if round == 0 {
					results = nil
				}
				return results, err
			}
			times[k] = math.Round(a.MS*1e6) / 1e6 // to nanoseconds
		}
		for k, ms := range times {
			results[k].times = append(results[k].times, ms)
		}
		onRound()
	}
	for _, w := range able {
		if _, err := w.ask(ctx, request{Do: "finish"}); err != nil {
			if c.failed == nil || ctx.Err() != nil {
				return nil, err
			}
			c.failed(err)
		}
	}
	return results, nil
}

// sampleCalls finds how many calls of the prepared case make a sample.
func (w *worker) sampleCalls(ctx context.Context, sampleMS float64) (calls int, err error) {
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

// agree compares results with the expected ones.
func agree(got, want []float64, within float64) error {
	close := func(a, b float64) bool { return math.Abs(a-b) <= within }
	if !slices.EqualFunc(got, want, close) {
		return fmt.Errorf("wrong result: %v, want %v within %v", got, want, within)
	}
	return nil
}

func milliseconds(begin time.Time, calls int) float64 {
	return time.Since(begin).Seconds() * 1e3 / float64(calls)
}
