package zero_test

import (
	"context"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/offload"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
	"github.com/shardbook/shardbook/lib/zero"
)

// TestRefused lists what cannot be, with what the error must say.
func TestRefused(t *testing.T) {
	backend := devicetest.Open(t, 4)
	good := train.Recipe{Model: toy.Model(false), Rule: optim.SGD(0.1)}
	mesh := func(axes ...xla.MeshAxis) *xla.Mesh {
		m, err := backend.Mesh(axes...)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	plain := mesh(xla.Axis(train.Axis, 2))
	program := func(m *xla.Mesh, r train.Recipe, o zero.Options) func() error {
		return func() error { _, err := zero.New(m, r, o); return err }
	}
	ranksOf := func(r train.Recipe, o zero.Options) func() error {
		return func() error { _, err := zero.NewEngine(backend, r, o); return err }
	}
	picky := train.Recipe{Model: toy.Picky(), Rule: optim.SGD(0.1)}
	unlike := train.Recipe{Model: toy.Unlike(), Rule: optim.SGD(0.1)}
	join := func(r train.Recipe, o zero.Options, rows int) func() error {
		return func() error {
			e := engine(t, backend, r, o)
			return group.Run(context.Background(), 3, func(ctx context.Context, g group.Group) error {
				r, err := e.Join(ctx, g, g.Rank())
				if err != nil {
					return err
				}
				defer r.Close()
				inputs, targets := toy.Batch(0, rows)
				_, err = r.Step(ctx, inputs, targets)
				if err == nil {
					return nil
				}
				if _, e := r.Params(ctx); e != nil && rows%3 != 0 { // what was wrong with the batch cost nothing
					t.Error(e)
				}
				return err
			})
		}
	}
	step := func(r train.Recipe, o zero.Options, rows int) func() error {
		return func() error {
			run, err := zero.New(plain, r, o)
			if err != nil {
				return err
			}
			defer run.Close()
			inputs, targets := toy.Batch(0, rows)
			_, err = run.Step(context.Background(), inputs, targets)
			if err != nil {
				if _, e := run.Params(context.Background()); e != nil {
					t.Error(e)
				}
			}
			return err
		}
	}
	for name, c := range map[string]struct {
		do   func() error
		want string
	}{
		"stage 0":         {program(plain, good, zero.Options{}), "Options.Stage is 0: set it to 1, 2 or 3"},
		"stage 4":         {ranksOf(good, zero.Options{Stage: 4}), "Options.Stage is 4"},
		"prefetch":        {ranksOf(good, zero.Options{Stage: 3, Prefetch: -1}), "Prefetch is -1"},
		"nothing to come": {ranksOf(good, zero.Options{Stage: 2, Prefetch: 1}), "Prefetch is 1 in stage 2"},
		"accumulate":      {ranksOf(good, zero.Options{Stage: 2, Accumulate: -1}), "Accumulate is -1"},
		"shards":          {ranksOf(good, zero.Options{Stage: 2, Shards: -2}), "Shards is -2"},
		"stash":           {ranksOf(good, zero.Options{Stage: 2, Activations: offload.Host}), "Activations is host, and Recompute false"},
		"no rule":         {ranksOf(train.Recipe{Model: good.Model}, zero.Options{Stage: 1}), "no rule"},
		"no mesh":         {program(nil, good, zero.Options{Stage: 1}), "mesh is nil"},
		"axes":            {program(mesh(xla.Axis("tensor", 2)), good, zero.Options{Stage: 1}), `axes ["tensor"]`},
		"axes' order":     {program(mesh(xla.Axis(train.Axis, 2), xla.Axis(zero.Replicas, 2)), good, zero.Options{Stage: 1}), "before it"},
		"a trace":         {program(plain, good, zero.Options{Stage: 1, Trace: trace.New()}), "for ranks"},
		"too many shards": {join(good, zero.Options{Stage: 1, Shards: 4}, 3), "Shards is 4 in a group of 3 ranks"},
		"uneven shards":   {join(good, zero.Options{Stage: 1, Shards: 2}, 3), "does not divide the group's 3 ranks"},
		"rows":            {join(good, zero.Options{Stage: 3}, 4), "4 rows is not divisible by 3 ranks"},
		"micro-batches":   {join(good, zero.Options{Stage: 3, Accumulate: 2}, 9), "3 ranks with 2 micro-batches each"},
		"no twins":        {join(unlike, zero.Options{Stage: 3}, 3), `blocks "h0" and "h2" are of the kind "h", but`},
		"devices' rows":   {step(good, zero.Options{Stage: 3}, 3), "not divisible"},
		"devices' parts":  {step(good, zero.Options{Stage: 3, Accumulate: 2}, 6), "not divisible into 2 micro-batches"},
		"a picky model":   {join(picky, zero.Options{Stage: 2}, 4), "not this batch"},
		"its program":     {step(picky, zero.Options{Stage: 2}, 4), "not this batch"},
		"plan":            {func() error { _, err := zero.NewPlan(good, zero.Options{Stage: 1}, 0); return err }, "0 ranks"},
		"auto":            {func() error { _, err := zero.NewAuto(nil, good, 1); return err }, "one axis"},
	} {
		if err := c.do(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
}
