package train_test

import (
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// mistaken is a model whose cuts do not fit its parameters.
type mistaken struct {
	dealt
	cuts []*params.Cut
}

func (m mistaken) Shards(func(axis string) (int, error)) (params.Shards, error) {
	return params.Shards{Axis: "tensor", Cuts: m.cuts}, nil
}

// What cannot be split is an error that names it, before anything is compiled.
func TestSharedRefused(t *testing.T) {
	mesh := func(axes ...xla.MeshAxis) *xla.Mesh {
		m := must.Get(eight().Mesh(axes...))(t)
		return m
	}
	data, four := xla.Axis(train.Axis, 1), xla.Axis("tensor", 4)
	shared, ring := way{tensor: 4}.model(even), way{ring: 4}.model(even)
	rule := optim.AdamW(1e-3)
	for name, c := range map[string]struct {
		mesh   *xla.Mesh
		recipe train.Recipe
		says   string
	}{
		"no such axis": {mesh(data, xla.Axis("ring", 4)), train.Recipe{Model: shared, Optimizer: rule},
			"tensor"},
		"no ring": {mesh(data, four), train.Recipe{Model: ring, Optimizer: rule}, "ring"},
		"one axis too many": {mesh(data, four, xla.Axis("ring", 2)), train.Recipe{Model: shared, Optimizer: rule},
			`"ring"`},
		"data is not first":   {mesh(four, data), train.Recipe{Model: shared, Optimizer: rule}, "first"},
		"an axis for nothing": {mesh(data, four), train.Recipe{Model: even, Optimizer: rule}, `"tensor"`},
		"heads": {mesh(data, xla.Axis("tensor", 5)), train.Recipe{Model: shared, Optimizer: rule},
			"h0.qkv.w"},
		"8-bit Adam": {mesh(data, four), train.Recipe{Model: shared, Optimizer: optim.Adam8bit(1e-3)},
			"h0.qkv.w"},
		"a cut too few": {mesh(data, xla.Axis("tensor", 3)),
			train.Recipe{Model: mistaken{cuts: three[:3]}, Optimizer: rule}, "3 Shards.Cuts"},
		"another's cut": {mesh(data, xla.Axis("tensor", 3)),
			train.Recipe{Model: mistaken{cuts: []*params.Cut{three[2], nil, nil, nil}}, Optimizer: rule}, `"copies"`},
		"of other ranks": {mesh(data, xla.Axis("tensor", 2)),
			train.Recipe{Model: mistaken{cuts: three}, Optimizer: rule}, "2"},
	} {
		run, err := ddp.NewSPMD(c.mesh, c.recipe)
		if err == nil {
			run.Close()
			t.Errorf("%s: no error", name)
			continue
		}
		if !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: error %q does not say %q", name, err, c.says)
		}
	}
	if _, err := train.New(mesh(data, xla.Axis("ring", 4)), train.Recipe{Model: ring, Optimizer: rule}); err == nil ||
		!strings.Contains(err.Error(), "Replicas") {
		t.Errorf("devices with other tokens and no mean: error %v", err)
	}
	if _, err := train.NewAuto(mesh(data, four), train.Recipe{Model: shared, Optimizer: rule}, nil); err == nil ||
		!strings.Contains(err.Error(), "gpt.Parallel") {
		t.Errorf("a shared model for the compiler to share: error %v", err)
	}
	run := way{tensor: 4}.run(t, train.Recipe{Model: gpt.Config{Layers: 1, Width: 8, Heads: 4, Seq: 4, Vocab: 8},
		Optimizer: rule})
	if _, err := run.Probe(nil); err == nil || !strings.Contains(err.Error(), "Probe") {
		t.Errorf("a probe of parts: error %v", err)
	}
}
