// Package traintest helps tests of training by ranks: with training on one device to compare with, with comparisons of
// results, and with faults.
package traintest

import (
	"math"
	"slices"
	"testing"

	"github.com/gomlx/compute/dtypes/bfloat16"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// Named are parameters by name.
type Named = params.Named[*tensors.Tensor]

// Batches gives the batch of a step.
type Batches = func(step int) (inputs, targets *tensors.Tensor)

// Whole is a model that is one function, not a chain of blocks.
type Whole struct{ train.Model }

// One is a run on one device; close it.
func One(t testing.TB, backend *xla.Backend, recipe train.Recipe) *train.Run {
	t.Helper()
	mesh, err := backend.Mesh(xla.Axis(train.Axis, 1))
	if err != nil {
		t.Fatal(err)
	}
	run, err := train.New(mesh, recipe)
	if err != nil {
		t.Fatal(err)
	}
	return run
}

// Alone trains on one device, and returns the parameters and what each step reported.
func Alone(t testing.TB, backend *xla.Backend, recipe train.Recipe, steps int,
	batches Batches) (Named, []train.Metrics) {
	t.Helper()
	run := One(t, backend, recipe)
	defer run.Close()
	var all []train.Metrics
	for step := range steps {
		m, err := run.Step(batches(step))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, m)
	}
	values, err := run.Params(0)
	if err != nil {
		t.Fatal(err)
	}
	named, err := params.Zip(recipe.Model.Params(), values)
	if err != nil {
		t.Fatal(err)
	}
	return named, all
}

// Apart is the largest difference between two trees, in units in the last place of the largest parameter, in float32.
// NaNs fail the test.
func Apart(t testing.TB, a, b Named) float64 {
	t.Helper()
	var worst, largest float64
	for name := range a {
		x, y := inFull(t, a[name]), inFull(t, b.Get(name))
		for i := range x {
			if x[i] != x[i] || y[i] != y[i] {
				t.Fatalf("%s has NaNs", name)
			}
			worst, largest = max(worst, math.Abs(float64(x[i])-float64(y[i]))), max(largest, math.Abs(float64(x[i])))
		}
	}
	return worst / (float64(math.Nextafter32(float32(largest), 2*float32(largest))) - largest)
}

// inFull copies a tensor's values as float32.
func inFull(t testing.TB, v *tensors.Tensor) (values []float32) {
	t.Helper()
	if err := v.ConstFlatData(func(flat any) {
		switch flat := flat.(type) {
		case []float32:
			values = slices.Clone(flat)
		case []bfloat16.BFloat16:
			for _, x := range flat {
				values = append(values, x.Float32())
			}
		case []int32:
			for _, x := range flat {
				values = append(values, float32(x))
			}
		default:
			t.Fatalf("values of %s", v.DType())
		}
	}); err != nil {
		t.Fatal(err)
	}
	return values
}

// Differ returns the name of a parameter whose bits differ, or that b lacks; "" if there is none.
func Differ(a, b Named) string {
	for name := range a {
		if b[name] == nil || !a[name].Equal(b[name]) {
			return name
		}
	}
	return ""
}

// Agree fails the test unless two trees have the same bits. If programs are compiled as for users, XLA contracts
// multiplications and additions and vectorizes loops differently in different programs: then results may differ by
// bound units in the last place of the largest parameter.
func Agree(t testing.TB, what string, a, b Named, bound float64) {
	t.Helper()
	name := Differ(a, b)
	if name == "" {
		return
	}
	if !devicetest.AsUsersDo() {
		t.Errorf("%s: %s has other bits", what, name)
	} else if off := Apart(t, a, b); !(off <= bound) {
		t.Errorf("%s: %g units apart, want at most %g", what, off, bound)
	}
}

// Last opens the newest checkpoint in a folder.
func Last(t testing.TB, dir string) *checkpoint.Checkpoint {
	t.Helper()
	path, err := checkpoint.Latest(dir)
	if err != nil {
		t.Fatal(err)
	}
	c, err := checkpoint.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
