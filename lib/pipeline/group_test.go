package pipeline_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// TestFaults makes ranks of an asynchronous pipeline fail, panic, stall or be cancelled, before a step and in it. The
// other rank gets an error that names it; later calls say what to do; and nothing is left on the devices. Faults in
// other layouts are tested in internal/engine and lib/parallel.
func TestFaults(t *testing.T) {
	const m = 4
	backend := devices(t)
	o := pipeline.Options{Schedule: scheduled(t, pipeline.KindPipeDream, 2, m), Timeout: time.Minute}
	ranks := traintest.Ranks[train.Trainer]{Size: 2, Batches: toy.Batches(m * microRows), Folder: t.TempDir(),
		Join: func(ctx context.Context, g group.Group) (train.Trainer, error) {
			return pipeline.Join(ctx, g, backend, g.Rank(), free(), o)
		},
		Ask: func(r train.Trainer) map[string]error {
			_, params := r.Params(context.Background())
			_, traffic := r.Traffic()
			return map[string]error{"Params": params, "Traffic": traffic}
		}}
	defer devicetest.NoLeaks(t, backend)()
	for _, c := range []traintest.Case{
		{At: "middle", Fault: traintest.Stalls, Victim: 1},
		{At: "last", Fault: traintest.Fails, Victim: 0},
		{At: "first", Fault: traintest.Panics, Victim: 1},
		{At: "before", Fault: traintest.Cancels, Victim: 0},
	} {
		ranks.Play(t, c)
	}
}

// TestAsynchronousCheckpoint resumes from a checkpoint with the same results: PipeDream fills the pipeline in each
// step.
func TestAsynchronousCheckpoint(t *testing.T) {
	const m = 4
	ctx, backend, batches, dir := context.Background(), devices(t), toy.Batches(m*microRows), t.TempDir()
	o := pipeline.Options{Schedule: scheduled(t, pipeline.KindPipeDream, 3, m)}
	run := start(t, backend, free(), o)
	var want, got result
	want.train(t, run, 2, batches)
	must.Do(t, run.Save(ctx, dir, nil, 0))
	in, out := batches(0)
	loss, err := run.Evaluate(ctx, in, out) // which changes nothing
	if must.Do(t, err); !(loss < want.metrics[0].Loss) {
		t.Errorf("the loss is %g after two steps, before %g", loss, want.metrics[0].Loss)
	}
	want.train(t, run, 3, batches)
	again := start(t, backend, free(), o)
	must.Do(t, again.Load(ctx, traintest.Last(t, dir)))
	got.train(t, again, 3, batches)
	same(t, "a run that goes on", got, want)
	for name, want := range map[string]int32{"train.steps": 2, "train.updates": 2 * m} {
		if got := tensors.ToScalar[int32](traintest.State(t, dir).Get(name)); got != want {
			t.Errorf("%s is %d, want %d", name, got, want)
		}
	}
}

// noReplicas is for a program on several devices.
type noReplicas struct{ train.Replicas }

// TestRefused lists invalid options and recipes, with their errors.
func TestRefused(t *testing.T) {
	backend := devices(t)
	oneF, pipeDream := scheduled(t, pipeline.Kind1F1B, 2, 4), scheduled(t, pipeline.KindPipeDream, 2, 4)
	cyclic, missing := oneF.Clone(), oneF.Clone()
	slices.Reverse(cyclic.Ranks[0][:3]) // its first micro-batch comes last, and the other rank's not
	missing.Ranks[1] = missing.Ranks[1][2:]
	clipped, scaled, replicated, whole := free(), free(), free(), free()
	clipped.Clip = 1
	scaled.Precision, _ = precision.ParsePolicy("fp16")
	replicated.Replicas = noReplicas{}
	whole.Model = traintest.Whole{Model: whole.Model}
	on := func(s *step.Plan, cut ...int) pipeline.Options { return pipeline.Options{Schedule: s, Cut: cut} }
	for name, c := range map[string]struct {
		recipe  train.Recipe
		options pipeline.Options
		want    string
	}{
		"no optimizer":       {train.Recipe{Model: toy.Model(false)}, on(oneF), "no optimizer"},
		"no schedule":        {free(), pipeline.Options{}, "Options.Schedule is nil"},
		"no chain":           {whole, on(oneF), "1 blocks cannot be 2 stages"},
		"a program's copies": {replicated, on(oneF), "set Options.Replicas"},
		"more stages":        {free(), on(scheduled(t, pipeline.KindGPipe, 5, 4)), "4 blocks cannot be 5 stages"},
		"more chunks":        {free(), on(scheduled(t, pipeline.KindZBV, 3, 4)), "4 blocks cannot be 6 stages"},
		"a short cut":        {free(), on(oneF, 4), "the cut [4] has 1 stages, the schedule 2"},
		"too few blocks":     {free(), on(oneF, 1, 2), "the cut [1 2] is for 3 blocks, the model has 4"},
		"too many":           {free(), on(oneF, 3, 2), "is for 5 blocks"},
		"an empty stage":     {free(), on(oneF, 4, 0), "gives stage 1 0 blocks"},
		"a negative stage":   {free(), on(oneF, 5, -1), "gives stage 1 -1 blocks"},
		"negative replicas":  {free(), pipeline.Options{Schedule: oneF, Replicas: -1}, "Options.Replicas is -1"},
		"a cycle":            {free(), on(cyclic), "rank 0"},
		"a missing pass":     {free(), on(missing), "1F0"},
		"clipping":           {clipped, on(pipeDream), "Recipe.Clip and loss scaling"},
		"scaling":            {scaled, on(pipeDream), "Recipe.Clip and loss scaling"},
		"tied":               {deep(true), on(pipeDream), "ranks [0 1] share scale"},
		"more devices":       {deep(false), on(scheduled(t, pipeline.KindGPipe, 9, 4)), "9 devices, the backend has 8"},
	} {
		run, err := pipeline.New(t.Context(), backend, c.recipe, c.options)
		if err == nil {
			_ = run.Close()
		}
		must.Refuse(t, name, err, c.want)
	}
	_, err := pipeline.New(t.Context(), nil, free(), on(oneF))
	must.Refuse(t, "no backend", err, "the backend is nil")
	join := func(ranks int, b *xla.Backend, first int) error {
		return group.Run(t.Context(), ranks, func(ctx context.Context, g group.Group) error {
			r, err := pipeline.Join(ctx, g, b, first+g.Rank(), free(), on(oneF))
			if err != nil {
				return err
			}
			return r.Close()
		}, group.Timeout(time.Minute))
	}
	must.Refuse(t, "a larger group", join(3, backend, 0),
		"a group of 3 ranks for 1 pipelines of 2 ranks: use a group of 2")
	must.Refuse(t, "no backend to join on", join(2, nil, 0), "the backend is nil")
	must.Refuse(t, "no such device", join(2, backend, deviceCount), "device 8")

	for _, c := range []struct {
		model train.Model
		rows  int
		want  string
	}{
		{toy.Model(false), 6, "a batch of 6 examples for 1 data-parallel devices with 4 micro-batches each"},
		{toy.Unlike(), 8, `"h0" and "h2" are of the kind "h", but not one function`},
		{toy.Picky(), 8, "not this batch"},
	} {
		run := start(t, backend, train.Recipe{Model: c.model, Optimizer: optim.SGD(1)}, on(oneF))
		for range 2 { // which loses no rank
			in, out := toy.Batch(0, c.rows)
			_, err := run.Step(t.Context(), in, out)
			must.Refuse(t, "a batch or a model", err, c.want)
		}
	}
}
