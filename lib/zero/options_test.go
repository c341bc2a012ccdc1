package zero_test

import (
	"context"
	"testing"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/lib/offload"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/zero"
)

// noReplicas is for a program on several devices.
type noReplicas struct{ train.Replicas }

// TestRefused lists invalid options and recipes, with their errors.
func TestRefused(t *testing.T) {
	backend := devicetest.Open(t, 8)
	good := train.Recipe{Model: toy.Model(false), Optimizer: optim.SGD(0.1)}
	replicated := good
	replicated.Replicas = noReplicas{}
	for name, c := range map[string]struct {
		recipe train.Recipe
		form   form
		want   string
	}{
		"stage 0":         {good, form{2, true, zero.Options{}}, "Options.Stage is 0: set it to 1, 2 or 3"},
		"stage 4":         {good, form{2, false, zero.Options{Stage: 4}}, "Options.Stage is 4"},
		"prefetch":        {good, form{2, false, zero.Options{Stage: 3, Prefetch: -1}}, "Prefetch is -1"},
		"nothing to come": {good, form{2, false, zero.Options{Stage: 2, Prefetch: 1}}, "Prefetch is 1 in stage 2"},
		"accumulate":      {good, form{2, false, zero.Options{Stage: 2, Accumulate: -1}}, "Accumulate is -1"},
		"shards":          {good, form{2, false, zero.Options{Stage: 2, Shards: -2}}, "Shards is -2"},
		"offload": {good, form{2, false, zero.Options{Stage: 2, Offload: offload.Host{Prefetch: -1}}},
			"Host.Prefetch is -1"},
		"host of several": {good, form{2, true, zero.Options{Stage: 2, Offload: offload.Host{Update: true}}},
			"updates on the host need one device per rank, not 2"},
		"no optimizer": {train.Recipe{Model: good.Model}, form{2, false, zero.Options{Stage: 1}}, "no optimizer"},
		"copies":       {replicated, form{2, false, zero.Options{Stage: 1}}, "Recipe.Replicas is set"},
		"too many shards": {good, form{3, false, zero.Options{Stage: 1, Shards: 4}},
			"Shards is 4, which does not divide the 3 ranks"},
		"uneven shards": {good, form{3, true, zero.Options{Stage: 1, Shards: 2}},
			"Shards is 2, which does not divide the 3 ranks"},
		"no ranks":    {good, form{0, false, zero.Options{Stage: 1}}, "0 ranks: give at least 1"},
		"few devices": {good, form{9, true, zero.Options{Stage: 1}}, "9 devices, the backend has 8"},
	} {
		begin := zero.New
		if c.form.spmd {
			begin = zero.NewSPMD
		}
		_, err := begin(t.Context(), backend, c.recipe, c.form.devices, c.form.Options)
		must.Refuse(t, name, err, c.want)
	}
	_, err := zero.New(t.Context(), nil, good, 2, zero.Options{Stage: 1})
	must.Refuse(t, "no backend", err, "backend is nil")
	_, err = zero.NewAuto(nil, good, 1)
	must.Refuse(t, "auto", err, "one axis")
	for name, c := range map[string]struct {
		recipe train.Recipe
		form   form
		rows   int
		want   string
	}{
		"rows": {good, form{3, false, zero.Options{Stage: 3}}, 4, "4 examples for 3 data-parallel devices"},
		"micro-batches": {good, form{3, false, zero.Options{Stage: 3, Accumulate: 2}}, 9,
			"3 data-parallel devices with 2 micro-batches each"},
		"devices' rows": {good, form{2, true, zero.Options{Stage: 3}}, 3, "3 examples for 2 data-parallel devices"},
		"no shared programs": {train.Recipe{Model: toy.Unlike(), Optimizer: optim.SGD(0.1)},
			form{3, false, zero.Options{Stage: 3}}, 3,
			`blocks "h0" and "h2" are of the kind "h", but`},
		"picky": {train.Recipe{Model: toy.Picky(), Optimizer: optim.SGD(0.1)}, form{2, true, zero.Options{Stage: 2}}, 4,
			"not this batch"},
	} {
		run := c.form.start(t, backend, c.recipe)
		for range 2 { // what was wrong with the batch cost nothing
			inputs, targets := toy.Batch(0, c.rows)
			_, err := run.Step(context.Background(), inputs, targets)
			must.Refuse(t, name, err, c.want)
		}
		must.Do(t, run.Close())
	}
}
