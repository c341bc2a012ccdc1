package checkpoint

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/params"
)

// ofBytes returns a vector with an element for each byte, and padding.
func ofBytes(t *testing.T, dtype dtypes.DType, data []byte, padding int) *tensors.Tensor {
	t.Helper()
	value := tensors.FromShape(params.New("", dtype, len(data)/dtype.Size()+padding).Shape)
	if err := value.MutableBytes(func(memory []byte) {
		for i := copy(memory, data); i < len(memory); i++ {
			memory[i] = 0xee // no boolean either
		}
	}); err != nil {
		t.Fatal(err)
	}
	return value
}

// writeAll makes all writers write their parts at the same time, and passes their results through JSON.
func writeAll(t *testing.T, s *Shared, parts [][]Part) []Written {
	t.Helper()
	written := make([]Written, len(parts))
	var group sync.WaitGroup
	for writer, mine := range parts {
		group.Go(func() {
			w, err := WriteParts(t.Context(), s.Path(), writer, s.step, mine)
			if err != nil {
				t.Error(err)
			}
			text, err := json.Marshal(w)
			if err == nil {
				err = json.Unmarshal(text, &written[writer])
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	return written
}

func saveParts(t *testing.T, dir string, step int, tree params.Tree, parts [][]Part) *Checkpoint {
	t.Helper()
	s := must.Get(Begin(dir, step))(t)
	written := writeAll(t, s, parts)
	slices.Reverse(written) // their order does not matter
	path := must.Get(s.Commit(t.Context(), step, tree, written, 0))(t)
	return open(t, path)
}

// deal splits each tensor's elements over the writers in ranges of random lengths, some of them only padding.
func deal(t *testing.T, rng *rand.Rand, tree params.Tree, wholes [][]byte, writers int) [][]Part {
	parts := make([][]Part, writers)
	give := func(p Part) {
		to := rng.IntN(writers)
		parts[to] = append(parts[to], p)
	}
	for i, spec := range tree {
		dtype := spec.Shape.DType
		if dtype.IsPacked() {
			value := tensors.FromShape(spec.Shape)
			must.Do(t, value.MutableBytes(func(data []byte) { copy(data, wholes[i]) }))
			give(Part{Spec: spec, Value: value})
			continue
		}
		for from := 0; from < spec.Size(); {
			n, padding := 1+rng.IntN(spec.Size()-from), 0
			if from+n == spec.Size() {
				padding = rng.IntN(4)
			}
			give(Part{spec, from, ofBytes(t, dtype, wholes[i][from*dtype.Size():][:n*dtype.Size()], padding)})
			from += n
		}
		if rng.IntN(2) == 0 {
			give(Part{spec, spec.Size() + rng.IntN(2), ofBytes(t, dtype, nil, 3)})
		}
	}
	return parts
}

// sliced returns the bytes of a range, the slow way.
func sliced(r Range, whole []byte) []byte {
	if r.Spec.Shape.DType.IsPacked() {
		return whole
	}
	n := r.Spec.Shape.DType.Size()
	want := make([]byte, r.Length*n)
	for i := range want {
		if at := r.From*n + i; at < len(whole) {
			want[i] = whole[at]
		}
	}
	return want
}

// Whatever ranges the writers have, everything is read as from a checkpoint of one writer, in full and in ranges.
func TestShared(t *testing.T) {
	rng := rand.New(rand.NewPCG(20, 21))
	all := slices.DeleteFunc(dtypes.DTypeValues(), func(dtype dtypes.DType) bool { return !dtype.IsSupported() })
	for range 60 {
		var tree params.Tree
		var values []*tensors.Tensor
		var wholes [][]byte
		for i := range 1 + rng.IntN(5) {
			shape := make([]int, rng.IntN(5))
			for axis := range shape {
				shape[axis] = 1 + rng.IntN(7)
			}
			spec := params.New(fmt.Sprintf("w%d", i), all[rng.IntN(len(all))], shape...)
			tree, values = append(tree, spec), append(values, random(t, rng, spec))
			wholes = append(wholes, bytesOf(t, values[i]))
		}
		dir := t.TempDir()
		shared := saveParts(t, dir, 1, tree, deal(t, rng, tree, wholes, 1+rng.IntN(9)))
		path := must.Get(Save(t.Context(), dir, 2, nil, tree, values, 0))(t)
		if got := shared.Tree(); fmt.Sprint(got) != fmt.Sprint(tree) {
			t.Errorf("the checkpoint holds %v, want %v", got, tree)
		}
		for i, value := range read(t, shared, tree) {
			if !value.Shape().Equal(tree[i].Shape) || !bytes.Equal(bytesOf(t, value), wholes[i]) {
				t.Fatalf("%s came back as %x, want %x", tree[i], bytesOf(t, value), wholes[i])
			}
		}
		var want []Range
		var from []int
		for range rng.IntN(12) {
			i := rng.IntN(len(tree))
			r := Range{tree[i], 0, tree[i].Size()}
			if !r.Spec.Shape.DType.IsPacked() {
				r.From = rng.IntN(r.Length + 3)
				r.Length = rng.IntN(r.Length + 3)
			}
			want, from = append(want, r), append(from, i)
		}
		for _, c := range []*Checkpoint{shared, open(t, path)} {
			got, err := c.ReadRanges(t.Context(), want)
			if err != nil || len(got) != len(want) {
				t.Fatal(len(got), err)
			}
			for i, r := range want {
				if shape := params.New("", r.Spec.Shape.DType, r.Length).Shape; !got[i].Shape().Equal(shape) {
					t.Fatalf("%v has shape %s", r, got[i].Shape())
				}
				if r.Length > 0 && !bytes.Equal(bytesOf(t, got[i]), sliced(r, wholes[from[i]])) {
					t.Fatalf("%v came back as %x, want %x", r, bytesOf(t, got[i]), sliced(r, wholes[from[i]]))
				}
			}
		}
	}
}

// Ranges that overlap in pieces larger than the read buffer.
func TestLargeRanges(t *testing.T) {
	rng := rand.New(rand.NewPCG(24, 25))
	spec := params.New("w", dtypes.Int16, 3, 50_000)
	whole := bytesOf(t, random(t, rng, spec))
	tree := params.Tree{spec}
	c := saveParts(t, t.TempDir(), 1, tree, deal(t, rng, tree, [][]byte{whole}, 3))
	want := []Range{{spec, 0, 150_000}, {spec, 70_000, 50_000}, {spec, 149_000, 2_000}, {spec, 3, 7}}
	got := must.Get(c.ReadRanges(t.Context(), want))(t)
	for i, r := range want {
		if !bytes.Equal(bytesOf(t, got[i]), sliced(r, whole)) {
			t.Errorf("%d elements from %d came back as others", r.Length, r.From)
		}
	}
}

// Arrays whose names would be the same get others, and both tensors are read back.
func TestNamesOfPieces(t *testing.T) {
	tree := params.Tree{params.New("w", dtypes.Int32, 4), params.New("w#0", dtypes.Int32),
		params.New("w#2", dtypes.Int32, 3),
		params.New("w#2#", dtypes.Int32)}
	vector := func(values ...int32) *tensors.Tensor { return tensors.FromValue(values) }
	c := saveParts(t, t.TempDir(), 1, tree, [][]Part{{
		{tree[0], 0, vector(1, 2)}, {tree[0], 2, vector(3, 4)},
		{tree[1], 0, vector(5)}, {tree[2], 0, vector(6, 7, 8)}, {tree[3], 0, vector(9)},
	}})
	var got []any
	for _, value := range read(t, c, tree) {
		got = append(got, value.Value())
	}
	if fmt.Sprint(got) != "[[1 2 3 4] 5 [6 7 8] 9]" {
		t.Errorf("they came back as %v", got)
	}
	var arrays []string
	for _, described := range c.manifest.Tensors {
		for _, p := range described.Pieces {
			arrays = append(arrays, p.Array)
		}
	}
	if want := []string{"w#0", "w#2", "w#0#", "w#2#", "w#2##"}; !slices.Equal(arrays, want) {
		t.Errorf("the arrays are %q, want %q", arrays, want)
	}
}
