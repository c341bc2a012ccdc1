package pipeline_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/pipeline/schedule"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/train"
)

// TestRefused lists what cannot be, with what the error must say.
func TestRefused(t *testing.T) {
	named := func(kind schedule.Kind, ranks, m int) schedule.Schedule { return newSchedule(t, kind, ranks, m, 0) }
	cyclic := named(schedule.Kind1F1B, 2, 4)
	slices.Reverse(cyclic.Ranks[0][:3]) // its first micro-batch comes last, and the other rank's not
	missing := named(schedule.Kind1F1B, 2, 4)
	missing.Ranks[1] = missing.Ranks[1][2:]
	chunked, err := schedule.Parse("schedule chunks stages=2 microbatches=1 every=1 weights=stash\nrank 0: 0F0 1F0 1B0 0B0 0U0 1U0")
	if err != nil {
		t.Fatal(err)
	}
	pipe := func(e *pipeline.Engine, o pipeline.Options) error {
		_, err := e.Pipeline(o)
		return err
	}
	engine := func(r train.Recipe, o pipeline.Options) error {
		e, err := pipeline.NewEngine(devices(), r)
		if err != nil {
			return err
		}
		defer e.Close()
		return pipe(e, o)
	}
	clipped, scaled, free := freeRecipe(), freeRecipe(), freeEngine(t)
	clipped.Clip = 1
	scaled.Precision, _ = precision.ParsePolicy("fp16")
	replicated, whole := freeRecipe(), freeRecipe()
	whole.Model = traintest.Whole{Model: whole.Model}
	replicated.Replicas = noReplicas{}
	pipeDream := pipeline.Options{Schedule: named(schedule.KindPipeDream, 2, 4)}
	oneF := named(schedule.Kind1F1B, 2, 4)
	closed, err := pipeline.NewEngine(devices(), freeRecipe())
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	closed.Close()
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"no backend":         {second(pipeline.NewEngine(nil, freeRecipe())), "backend is nil"},
		"no rule":            {engine(train.Recipe{Model: freeChain()}, pipeline.Options{}), "no rule"},
		"no chain":           {engine(whole, pipeline.Options{Schedule: oneF}), "1 blocks cannot be 2 stages"},
		"a program's copies": {engine(replicated, pipeline.Options{Schedule: oneF}), "set Options.Replicas"},
		"no schedule":        {pipe(free, pipeline.Options{}), "schedule"},
		"more stages":        {pipe(free, pipeline.Options{Schedule: named(schedule.KindGPipe, 5, 4)}), "4 blocks cannot be 5 stages"},
		"more chunks":        {pipe(free, pipeline.Options{Schedule: named(schedule.KindZBV, 3, 4)}), "4 blocks cannot be 6 stages"},
		"a short cut":        {pipe(free, pipeline.Options{Schedule: oneF, Cut: []int{4}}), "Options.Cut has 1 stages, the schedule 1f1b 2"},
		"too few blocks":     {pipe(free, pipeline.Options{Schedule: oneF, Cut: []int{1, 2}}), "Options.Cut, [1 2], is for 3 blocks, and the model has 4"},
		"too many":           {pipe(free, pipeline.Options{Schedule: oneF, Cut: []int{3, 2}}), "is for 5 blocks"},
		"an empty stage":     {pipe(free, pipeline.Options{Schedule: oneF, Cut: []int{4, 0}}), "Options.Cut gives stage 1 0 blocks"},
		"a negative stage":   {pipe(free, pipeline.Options{Schedule: oneF, Cut: []int{5, -1}}), "Options.Cut gives stage 1 -1 blocks"},
		"negative replicas":  {pipe(free, pipeline.Options{Schedule: oneF, Replicas: -1}), "Options.Replicas is -1"},
		"a cycle":            {pipe(free, pipeline.Options{Schedule: cyclic}), "rank 0"},
		"a missing pass":     {pipe(free, pipeline.Options{Schedule: missing}), "1F0"},
		"clipping alone":     {engine(clipped, pipeDream), "Recipe.Clip or loss scaling"},
		"scaling alone":      {engine(scaled, pipeDream), "Recipe.Clip or loss scaling"},
		"tied":               {pipe(tiedEngine(t), pipeDream), "ranks [0 1] have scale in common"},
		"two stages":         {pipe(free, pipeline.Options{Schedule: chunked}), "rank 0 has the stages [0 1]"},
	} {
		checkError(t, name, c.err, c.want)
	}
	inputs, targets := toyBatches(8)(0)
	_, err = oneStep(t, closed, oneF, 2, 8)
	checkError(t, "closed", err, "engine is closed")
	_, err = oneStep(t, free, oneF, 3, 8)
	checkError(t, "a larger group", err, "a group of 3 ranks for 1 pipelines of 2: make it 2")
	lost, err := oneStep(t, free, oneF, 2, 6)
	checkError(t, "rows", err, "6 rows is not divisible by 1 ranks with 4 micro-batches each")
	if lost {
		t.Error("a batch that cannot be divided loses ranks")
	}
	unlike := engineOf(t, "unlike", train.Recipe{Model: toy.Unlike(), Rule: optim.SGD(1)})
	_, err = oneStep(t, unlike, oneF, 2, 8)
	checkError(t, "twins that are none", err, `"h0" and "h2" are of the kind "h", but not one function`)
	lost, err = oneStep(t, engineOf(t, "picky", train.Recipe{Model: toy.Picky(), Rule: optim.SGD(1)}), oneF, 2, 8)
	if checkError(t, "a batch that the model refuses", err, "not this batch"); lost {
		t.Error("such a batch loses ranks")
	}
	p, err := free.Pipeline(pipeline.Options{Schedule: oneF})
	if err != nil {
		t.Fatal(err)
	}
	err = group.Run(t.Context(), 2, func(ctx context.Context, g group.Group) error {
		_, err := p.Join(ctx, g, deviceCount+1)
		return err
	})
	checkError(t, "no such device", err, "device 5 of 4")
	err = group.Run(t.Context(), 2, func(ctx context.Context, g group.Group) error {
		r, err := p.Join(ctx, g, g.Rank())
		if err != nil {
			return err
		}
		if err := r.Close(); err != nil {
			return err
		}
		_, err = r.Step(ctx, inputs, targets)
		return errors.Join(err, r.Close())
	}, group.Timeout(time.Minute))
	checkError(t, "a closed rank", err, "the rank is closed: join again")
}

func second[T any](_ T, err error) error { return err }

// noReplicas is for a program on several devices.
type noReplicas struct{ train.Replicas }

// oneStep has so many ranks make a step with a batch of so many rows, and says whether the first was lost by it.
func oneStep(t *testing.T, e *pipeline.Engine, s schedule.Schedule, ranks, rows int) (lost bool, err error) {
	t.Helper()
	p, err := e.Pipeline(pipeline.Options{Schedule: s})
	if err != nil {
		return false, err
	}
	inputs, targets := toyBatches(rows)(0)
	err = group.Run(t.Context(), ranks, func(ctx context.Context, g group.Group) error {
		r, err := p.Join(ctx, g, g.Rank())
		if err != nil {
			return err
		}
		defer r.Close()
		_, err = r.Step(ctx, inputs, targets)
		if _, gone := r.Params(); gone != nil && g.Rank() == 0 {
			lost = true
		}
		return err
	}, group.Timeout(time.Minute))
	return lost, err
}
