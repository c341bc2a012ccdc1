package engine_test

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/engine"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/train"
)

// unpaired returns a schedule without pairs.
func unpaired(p *step.Plan) *step.Plan {
	p = p.Clone()
	for _, list := range p.Ranks {
		for i := range list {
			list[i].Paired = false
		}
	}
	return p
}

// piped is the spec of two pipelines of a schedule, whose ranks with the same stages exchange rows in each block.
func piped(t testing.TB, schedule *step.Plan, blocks int) engine.Spec {
	model := toy.Layers(blocks, false)
	for i := range model.Blocks {
		traveled(&model.Blocks[i], "expert", 1)
	}
	p, members := engine.Serial(model, schedule.Micro)
	cut := must.Get(pipeline.Even(blocks, len(schedule.Blocks)))(t)
	p = must.Get(pipeline.Spread(p, schedule, cut))(t).Replicate(2, "replica")
	expert, ranks := step.Axis{Name: "expert", Size: 2}, len(schedule.Ranks)
	for r := range ranks {
		expert.Groups = append(expert.Groups, []int{r, ranks + r})
	}
	p.Axes = append(p.Axes, expert)
	recipe := train.Recipe{Model: model, Optimizer: optim.SGDOptimizer{LR: 0.5, Momentum: 0.9}}
	return engine.Spec{Recipe: recipe, Members: members, Between: []string{"expert"},
		Plans: []*step.Plan{ddp.Average(p, true, false)}, Options: engine.Options{Apart: true}}
}

// pipedRows is the number of examples of a step of piped.
const pipedRows = 2 * 8 * 4

func dualPipe(t testing.TB) *step.Plan { return must.Get(pipeline.DualPipe(2, 8))(t) }

// TestPairs compares DualPipe with and without pairs by ranks that exchange rows in every pass: the same bits. Ranks of
// a group run the same programs and begin the same exchanges in the same order. With pairs, and only then, programs of
// another pass run between those of a pass, while its exchanges are under way.
func TestPairs(t *testing.T) {
	var params []traintest.Named
	for k, schedule := range []*step.Plan{unpaired(dualPipe(t)), dualPipe(t)} {
		spec := piped(t, schedule, 4)
		spec.Trace = trace.New()
		all, err := together(t, spec, 2, pipedRows, func(r *engine.Rank) (traintest.Named, error) {
			return r.Params(t.Context())
		})
		must.Do(t, err)
		params = append(params, all[0])
		spans, orders := spec.Trace.Spans(), make([][]string, len(all))
		for r := range orders {
			of := append(trace.Of(spans, r, trace.Compute), trace.Of(spans, r, trace.Send)...)
			slices.SortStableFunc(of, func(a, b trace.Span) int { return cmp.Compare(a.Start, b.Start) })
			pass, begun, hidden, exchanges := "", map[string]bool{}, 0, 0
			for _, s := range of {
				orders[r] = append(orders[r], s.Name)
				switch {
				case s.Stream == trace.Send:
					exchanges++
				case strings.HasPrefix(s.Name, "U"):
					clear(begun)
				case s.Name != pass:
					if begun[s.Name] {
						hidden++
					}
					pass, begun[s.Name] = s.Name, true
				}
			}
			if paired := k == 1; paired && hidden < exchanges/4 || !paired && hidden > 0 {
				t.Errorf("pairs: %v, rank %d has %d exchanges, and goes on with a pass after programs of another one "+
					"%d times", paired, r, exchanges, hidden)
			}
		}
		for r := range 2 {
			if a, b := orders[r], orders[r+2]; !slices.Equal(a, b) {
				t.Errorf("rank %d computes and exchanges %v, and rank %d %v", r, a, r+2, b)
			}
		}
	}
	if name := traintest.Differ(params[0], params[1]); name != "" {
		t.Errorf("%s has other bits with pairs", name)
	}
}

// TestPairFaults has a rank fail in every way in the middle of a step, where it has two passes under way.
func TestPairFaults(t *testing.T) {
	programs := must.Get(engine.New(devicetest.Open(t, 8), piped(t, dualPipe(t), 4)))(t)
	defer programs.Close()
	ranks := traintest.Ranks[*engine.Rank]{Size: 4, Folder: t.TempDir(), Batches: toy.Batches(pipedRows),
		Join: func(ctx context.Context, g group.Group) (*engine.Rank, error) { return programs.Join(ctx, g, g.Rank()) }}
	for i, fault := range traintest.Faults {
		ranks.Play(t, traintest.Case{At: "middle", Fault: fault, Victim: i})
	}
}

// BenchmarkPairs measures for how long a rank of a pipeline waits for exchanges in passes over a slow link. Passes take
// a fixed time, as on devices of their own.
func BenchmarkPairs(b *testing.B) {
	const pass = 24 * time.Millisecond
	schedules := map[string]*step.Plan{"1f1b": must.Get(pipeline.OneFOneB(2, 8))(b),
		"zb-h1": must.Get(pipeline.ZBH1(2, 8))(b), "dualpipe": unpaired(dualPipe(b)), "dualpipe, pairs": dualPipe(b)}
	for _, name := range []string{"1f1b", "zb-h1", "dualpipe", "dualpipe, pairs"} {
		b.Run(name, func(b *testing.B) {
			spec := piped(b, schedules[name], 4)
			spec.Trace, spec.Link = trace.New(), group.Link{Latency: 2 * time.Millisecond}
			spec.Pace = func(op step.Op) time.Duration {
				if op.Kind == step.Update {
					return 0
				}
				return pass / 2
			}
			run := must.Get(engine.Start(b.Context(), devicetest.Open(b, 8), spec))(b)
			defer func() { must.Do(b, run.Close()) }()
			took, waited, ranks := time.Duration(0), time.Duration(0), len(spec.Plans[0].Ranks)
			for i := -1; i < b.N; i++ { // the first one compiles
				in, out := toy.Batch(0, pipedRows)
				begun := time.Now()
				must.Get(run.Step(b.Context(), in, out))(b)
				if spans := spec.Trace.Take().Spans; i >= 0 {
					took += time.Since(begun)
					for r := range ranks {
						for _, s := range trace.Of(spans, r, trace.Wait) {
							if strings.Contains(s.Name, "along") {
								waited += (s.End - s.Start) / time.Duration(ranks)
							}
						}
					}
				}
			}
			b.ReportMetric(took.Seconds()*1000/float64(b.N), "ms/step")
			b.ReportMetric(waited.Seconds()*1000/float64(b.N), "ms-waited/step")
		})
	}
}
