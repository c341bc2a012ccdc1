package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"

	"github.com/shardbook/shardbook/lib/notebook"
)

// runStaged measures the cases of a staged benchmark. What fails is said, and left out; the error at the end names it.
func (s settings) runStaged(ctx context.Context, b *benchmark, p place, report *report, cases []testCase,
	implementations []implementation) error {
	of := func(class string) (able []implementation) {
		for _, im := range implementations {
			if im.class == class {
				able = append(able, im)
			}
		}
		return able
	}
	steps := 0
	for _, c := range cases {
		if c.apart {
			steps += s.rounds * len(of(c.class))
		} else {
			steps += s.rounds
		}
	}
	bar := notebook.NewBar(b.name, steps)
	defer bar.Done()
	r := stagedRun{settings: s, benchmark: b, place: p, report: report, bar: bar}
	for len(cases) > 0 && ctx.Err() == nil {
		first, n := cases[0], 1
		for !first.apart && n < len(cases) && !cases[n].apart && cases[n].class == first.class {
			n++
		}
		if first.apart {
			r.apart(ctx, first, of(first.class))
		} else {
			r.together(ctx, cases[:n], of(first.class))
		}
		cases = cases[n:]
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return errors.Join(r.failed...)
}

// stagedRun is a run of a staged benchmark.
type stagedRun struct {
	settings
	*benchmark
	place
	report *report
	bar    *notebook.Bar
	failed []error
}

// fail notes an error, if there is one, and says it at once.
func (r *stagedRun) fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		r.failed = append(r.failed, err)
	}
}

// start starts those implementations that can be, at the same time: importing PyTorch or JAX takes seconds.
func (r *stagedRun) start(ctx context.Context, implementations []implementation) (workers []*worker) {
	started, errs := make([][]*worker, len(implementations)), make([]error, len(implementations))
	var starting sync.WaitGroup
	for i := range implementations {
		starting.Go(func() {
			started[i], errs[i] = startWorkers(ctx, implementations[i:i+1], r.benchmark, r.place, func(string) {})
		})
	}
	starting.Wait()
	for i := range implementations {
		workers = append(workers, started[i]...)
		r.fail(errs[i])
	}
	r.report.note(workers)
	return workers
}

// together measures cases of a class, in rounds of all implementations.
func (r *stagedRun) together(ctx context.Context, cases []testCase, implementations []implementation) {
	workers := r.start(ctx, implementations)
	defer stopWorkers(workers)
	for _, c := range cases {
		if ctx.Err() == nil {
			r.fail(r.report.add(c, r.measure(ctx, c, workers)))
		}
	}
}

// measure takes the samples that it can.
func (r *stagedRun) measure(ctx context.Context, c testCase, workers []*worker) []result {
	c.failed = func(err error) {
		if err != nil {
			r.fail(fmt.Errorf("%s: %w", c.name, err))
		}
	}
	results, err := measure(ctx, c, workers, r.settings.rounds, func() { r.bar.Step("%s", c.name) })
	c.failed(err)
	return results
}

// apart measures a case of which one implementation at a time fits. Each is reported when it is measured, and all when
// they can be compared.
func (r *stagedRun) apart(ctx context.Context, c testCase, implementations []implementation) {
	var all []result
	for _, im := range implementations {
		if ctx.Err() != nil {
			break
		}
		workers := r.start(ctx, []implementation{im})
		results := r.measure(ctx, c, workers)
		stopWorkers(workers)
		r.fail(r.report.write(compare(r.name, c, results)))
		all = append(all, results...)
		if c.want == nil && len(results) > 0 {
			c.want = results[0].Values
		}
	}
	r.fail(r.report.add(c, sameRounds(all)))
}

// sameRounds cuts the samples of results to the rounds that all have.
func sameRounds(all []result) []result {
	least := math.MaxInt
	for _, r := range all {
		least = min(least, len(r.times))
	}
	for i := range all {
		all[i].times = all[i].times[:least]
	}
	return all
}
