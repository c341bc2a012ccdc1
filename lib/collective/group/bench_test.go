package group

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/shardbook/shardbook/lib/collective/plan"
)

// The benchmarks compare ways to do one thing on one machine at one time, and report
// ratios, of calls that take turns.

// BenchmarkAllReduce says how many times longer plans take than the fused way.
func BenchmarkAllReduce(b *testing.B) {
	for _, bytes := range []int{4 << 10, 1 << 20, 16 << 20} {
		b.Run(fmt.Sprintf("%dKiB", bytes>>10), func(b *testing.B) {
			const n = 4
			fused := func(ctx context.Context, g Group, buf []float32) error { return AllReduce(ctx, g, buf, Sum) }
			planned := func(algorithm plan.Algorithm) call {
				p, err := plan.New(plan.AllReduce, algorithm, n)
				if err != nil {
					b.Fatal(err)
				}
				return func(ctx context.Context, g Group, buf []float32) error { return RunPlan(ctx, g, p, buf, Sum) }
			}
			times := race(b, bytes/4, newRanks(b, n), []call{fused, planned(plan.Naive), planned(plan.Ring)})
			b.ReportMetric(slices.Min(times[1])/slices.Min(times[0]), "naive/fused")
			b.ReportMetric(slices.Min(times[2])/slices.Min(times[0]), "ring/fused")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkRecords says how much the flight recorder and the checks add to an
// all-reduce of 1 MiB, in percent: the median over pairs of calls.
func BenchmarkRecords(b *testing.B) {
	const n = 4
	bare := newRanks(b, n, func(c *config) { c.bare = true })
	times := race(b, 1<<18, newRanks(b, n), []call{
		func(ctx context.Context, g Group, buf []float32) error { return AllReduce(ctx, g, buf, Sum) },
		func(ctx context.Context, g Group, buf []float32) error {
			return AllReduce(ctx, bare[g.Rank()], buf, Sum)
		},
	})
	var ratios []float64
	for i, with := range times[0] {
		ratios = append(ratios, with/times[1][i])
	}
	slices.Sort(ratios)
	b.ReportMetric(100*(ratios[len(ratios)/2]-1), "%")
	b.ReportMetric(0, "ns/op")
}

type call func(ctx context.Context, g Group, buf []float32) error

func newRanks(b *testing.B, n int, options ...Option) []Group {
	groups, err := New(n, options...)
	if err != nil {
		b.Fatal(err)
	}
	return groups
}

// race returns the times of each call, in seconds, between all ranks' being there and
// the last one's having its result.
func race(b *testing.B, elements int, groups []Group, calls []call) [][]float64 {
	times := make([][]float64, len(calls))
	n := len(groups)
	err := Run(context.Background(), n, func(ctx context.Context, ranks Group) error {
		g := groups[ranks.Rank()]
		buf := make([]float32, elements)
		for i := range buf {
			buf[i] = 1 / float32(i+1)
		}
		for range b.N {
			for i, call := range calls {
				const inner = 4
				took, err := Time(ctx, g, func() error {
					for range inner {
						if err := call(ctx, g, buf); err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					return err
				}
				if ranks.Rank() == 0 {
					times[i] = append(times[i], took.Seconds()/inner)
				}
			}
			clear(buf)
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	return times
}
