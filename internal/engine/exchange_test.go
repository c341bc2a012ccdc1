package engine_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/engine"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/systest"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/collective"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/recompute"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// travelGroups are the groups of each rank that rows travel to.
const travelGroups = 2

// travelKeys is the number of groups that rows choose among, one more than there are: some rows stay.
func travelKeys(ranks int) int { return ranks*travelGroups + 1 }

// traveling is toy.Layers whose first layer has rows go to other ranks along an axis, as many as the inputs say, be
// multiplied there, and come back; and an even all-to-all. Its results have room for a part of the worst case. The
// second layer shifts rows around the ring, if there is one.
func traveling(axis string, part int) chain.Model {
	model := toy.Layers(3, false)
	traveled(&model.Blocks[0], axis, part)
	second := model.Blocks[1].Apply
	model.Blocks[1].Apply = func(p params.Nodes, x, key, row *graph.Node) *graph.Node {
		if collective.IsBetween(x.Graph(), "ring") {
			x = collective.RingShift(x, 1, "ring")
		}
		return second(p, x, key, row)
	}
	return model
}

// traveled has a block exchange its results as in traveling.
func traveled(b *chain.Block, axis string, part int) {
	apply := b.Apply
	b.Apply = func(p params.Nodes, x, key, row *graph.Node) *graph.Node {
		g, y := x.Graph(), apply(p, x, key, row)
		n, m := collective.AxisSize(g, axis), x.Shape().Dimensions[0]
		chosen := graph.MulScalar(graph.Abs(graph.Slice(x, graph.AxisRange(), graph.AxisElem(0))), 100)
		chosen = graph.Mod(graph.ConvertDType(chosen, dtypes.Int32), graph.Const(g, int32(travelKeys(n))))
		counts := graph.ReduceSum(graph.ConvertDType(graph.Equal(graph.BroadcastToDims(chosen, m, n*travelGroups),
			graph.Iota(g, shapes.Make(dtypes.Int32, m, n*travelGroups), 1)), dtypes.Int32), 0)
		there, received := collective.AllToAllV(y, counts, max(1, m*n/part), axis)
		own := graph.AddScalar(graph.DivScalar(graph.ConvertDType(collective.Rank(g, axis), y.DType()), 4), 1)
		home := collective.AllToAllVKnown(graph.Mul(graph.Sin(there), own), received, counts, m, axis)
		return graph.Add(home, collective.AllToAll(graph.Tanh(y), 0, 0, axis))
	}
}

// travelBytes is what each rank sends along the axis in a step, without recomputation.
func travelBytes(inputs *tensors.Tensor, ranks int) []int64 {
	const row = 6 * 4
	x := tensors.MustCopyFlatData[float32](inputs)
	rows := len(x) / 4
	m := rows / ranks
	bytes := make([]int64, ranks)
	for r := range bytes {
		// the counts once; forward and backward, part of the even all-to-all
		bytes[r] = int64((ranks-1)*travelGroups*4) + 2*int64(m/ranks*(ranks-1))*row
	}
	for i := range rows {
		chosen := int32(float32(math.Abs(float64(x[4*i])))*100) % int32(travelKeys(ranks))
		from, to := i/m, int(chosen)/travelGroups
		if to < ranks && to != from { // there and back, and gradients back and there
			bytes[from] += 2 * row
			bytes[to] += 2 * row
		}
	}
	return bytes
}

// between is the spec of ranks that exchange along the axis "expert", and of rings of two if there are.
func between(model chain.Model, ranks int, rings bool, change func(p *step.Plan) *step.Plan) engine.Spec {
	total := ranks
	if rings {
		total *= 2
	}
	p, members := replicas(model, total, 1)
	expert, ring := step.Axis{Name: "expert", Size: ranks}, step.Axis{Name: "ring", Size: 2}
	for i := range total / ranks {
		var group []int
		for r := range ranks {
			group = append(group, r*total/ranks+i)
		}
		expert.Groups = append(expert.Groups, group)
	}
	spec := engine.Spec{Members: members, Between: []string{"expert"}}
	if p.Axes = append(p.Axes, expert); rings {
		for r := range ranks {
			ring.Groups = append(ring.Groups, []int{2 * r, 2*r + 1})
		}
		p.Axes, spec.Ring = append(p.Axes, ring), "ring"
	}
	if change != nil {
		p = change(p)
	}
	spec.Recipe = train.Recipe{Model: model, Optimizer: optim.SGDOptimizer{LR: 0.5, Momentum: 0.9}}
	spec.Plans = []*step.Plan{ddp.Average(p, true, false)}
	return spec
}

// together trains by ranks of a group, and returns what each has after some steps.
func together[T any](t *testing.T, spec engine.Spec, steps, rows int,
	has func(r *engine.Rank) (T, error)) ([]T, error) {
	t.Helper()
	programs := must.Get(engine.New(devicetest.Open(t, 8), spec))(t)
	defer programs.Close()
	all := make([]T, len(spec.Plans[0].Ranks))
	return all, group.Run(t.Context(), len(all), func(ctx context.Context, g group.Group) (err error) {
		r, err := programs.Join(ctx, g, g.Rank()*max(1, len(spec.Mesh)))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.Close()) }()
		for i := range steps {
			in, out := toy.Batch(i, rows)
			if _, err := r.Step(ctx, in, out); err != nil {
				return err
			}
		}
		all[g.Rank()], err = has(r)
		return err
	}, group.Timeout(time.Hour))
}

// TestExchanges trains by ranks that exchange rows in passes: the parameters are those of one rank whose devices do
// the same in one program, and the bytes sent are counted one by one.
func TestExchanges(t *testing.T) {
	const steps = 3
	for ranks := 2; ranks <= 4; ranks++ {
		rows := 2 * ranks * ranks
		inside := layout{ranks: 1, devices: ranks, micro: 1}.plan(t, traveling(train.Axis, 1))
		inside.Recipe = between(traveling(train.Axis, 1), ranks, false, nil).Recipe
		want := learn(t, inside, steps, rows)
		for name, spec := range map[string]engine.Spec{
			"ranks":      between(traveling("expert", 1), ranks, false, nil),
			"recomputed": between(traveling("expert", 1), ranks, false, recompute.Blocks),
			"rings":      between(traveling("expert", 1), ranks, true, nil),
		} {
			for _, staged := range []bool{false, true} {
				spec.Staged = staged
				t.Run(fmt.Sprint(ranks, " ", name, " ", staged), func(t *testing.T) {
					type has struct {
						params  traintest.Named
						traffic map[string]int64
					}
					all, err := together(t, spec, steps, rows, func(r *engine.Rank) (h has, err error) {
						if h.traffic, err = r.Traffic(); err == nil {
							h.params, err = r.Params(t.Context())
						}
						return h, err
					})
					must.Do(t, err)
					if off := traintest.Apart(t, want, all[0].params); !(off <= 64) {
						t.Errorf("%g units apart", off)
					}
					in, _ := toy.Batch(steps-1, rows)
					bytes := travelBytes(in, ranks)
					for r, h := range all {
						if want := bytes[r*ranks/len(all)]; name != "recomputed" && h.traffic["expert"] != want {
							t.Errorf("rank %d sent %d bytes, want %d", r, h.traffic["expert"], want)
						}
					}
				})
			}
		}
	}
}

// TestExchangesRefused has too little room for rows, and ranks of two devices.
func TestExchangesRefused(t *testing.T) {
	nothing := func(*engine.Rank) (int, error) { return 0, nil }
	_, err := together(t, between(traveling("expert", 1000), 2, false, nil), 1, 8, nothing)
	for _, want := range []string{"in the exchange all-to-all-v along expert: ", "there is room for 1: give AllToAllV"} {
		must.Refuse(t, "too few rows", err, want)
	}
	spec := between(traveling("expert", 1), 2, false, nil)
	spec.Mesh = []xla.MeshAxis{xla.Axis(train.Axis, 2)}
	must.Refuse(t, "ranks of two devices", engine.Check(spec), "between ranks of one device each, and these have 2")
}

// TestExchangeFaults has a rank fail in every way in the middle of a step with exchanges.
func TestExchangeFaults(t *testing.T) {
	backend := devicetest.Open(t, 8)
	programs := must.Get(engine.New(backend, between(traveling("expert", 1), 3, false, nil)))(t)
	defer programs.Close()
	ranks := traintest.Ranks[*engine.Rank]{Size: 3, Folder: t.TempDir(), Batches: toy.Batches(18),
		Join: func(ctx context.Context, g group.Group) (*engine.Rank, error) { return programs.Join(ctx, g, g.Rank()) }}
	for i, fault := range traintest.Faults {
		for _, at := range []string{"first", "middle"} {
			ranks.Play(t, traintest.Case{At: at, Fault: fault, Victim: i % 3})
		}
	}
}

// envExchange is set in processes that are ranks: the folder for their checkpoints.
const envExchange = "SHARDBOOK_EXCHANGE_DIR"

// exchangeAndSave is a rank's part.
func exchangeAndSave(ctx context.Context, g group.Group, backend *xla.Backend, first int, dir string) (err error) {
	programs, err := engine.New(backend, between(traveling("expert", 1), g.Size(), false, nil))
	if err != nil {
		return err
	}
	defer programs.Close()
	r, err := programs.Join(ctx, g, first)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	for i := range 3 {
		in, out := toy.Batch(i, 2*g.Size()*g.Size())
		if _, err := r.Step(ctx, in, out); err != nil {
			return err
		}
	}
	return r.Save(ctx, dir, nil, 1)
}

// TestExchangesOfProcesses compares ranks under mpirun with goroutines: the same bits.
func TestExchangesOfProcesses(t *testing.T) {
	program := systest.BuildRanks(t, t.TempDir())
	theirs, own := t.TempDir(), t.TempDir()
	output, _, err := systest.Ranks(t, envExchange+"="+theirs, "mpirun", "-n", "3", "--oversubscribe", program)
	if err != nil {
		t.Fatalf("mpirun: %v: %s", err, output)
	}
	must.Do(t, group.Run(t.Context(), 3, func(ctx context.Context, g group.Group) error {
		return exchangeAndSave(ctx, g, devicetest.Open(t, 8), g.Rank(), own)
	}, group.Timeout(time.Hour)))
	if name := traintest.Differ(traintest.State(t, theirs), traintest.State(t, own)); name != "" {
		t.Errorf("%s has other bits in processes", name)
	}
}
