package gpt_test

import (
	"strings"
	"testing"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/gpt"
)

// TestCheckBatch checks tokens that are not in the vocabulary.
func TestCheckBatch(t *testing.T) {
	c := gpt.Config{Layers: 1, Width: 8, Heads: 2, Seq: 3, Vocab: 11}
	blocks, err := c.Chain()
	if err != nil {
		t.Fatal(err)
	}
	good := [][]int32{{0, 1, 2}, {8, 9, 10}}
	for name, b := range map[string]struct {
		inputs, targets any
		want            string
	}{
		"good":   {good, good, ""},
		"masked": {good, [][]int32{{0, 1, 2}, {-100, -1, 10}}, ""},
		"bytes": {[][]uint8{{0, 1, 11}}, good, "inputs have token 11 in sequence 0 at position 2, but the " +
			"vocabulary"},
		"negative": {[][]int64{{0, 1, 2}, {-1, 0, 0}}, good, "inputs have token -1 in sequence 1 at position 0"},
		"a target": {good, [][]int32{{0, 1, 2}, {8, 300, 10}},
			"targets have token 300 in sequence 1 at position 1, but"},
		"no matrix": {int32(11), int32(11), ""}, // which the graph refuses
		"no tokens": {[][]float32{{11}}, [][]float32{{11}}, ""},
	} {
		inputs, targets := tensors.MustFromAnyValue(b.inputs), tensors.MustFromAnyValue(b.targets)
		for _, m := range []interface {
			CheckBatch(inputs, targets *tensors.Tensor) error
		}{c, gpt.Parallel{Config: c}, blocks} {
			err := m.CheckBatch(inputs, targets)
			if b.want == "" && err != nil || b.want != "" && (err == nil || !strings.Contains(err.Error(), b.want)) {
				t.Errorf("%s, a %T: error %v, want %q", name, m, err, b.want)
			}
		}
	}
}
