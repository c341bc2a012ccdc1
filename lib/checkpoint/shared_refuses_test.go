package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/params"
)

var (
	matrix  = params.New("w", dtypes.Int32, 2, 3)
	flag    = params.New("f", dtypes.Bool)
	twoSpec = params.Tree{matrix, flag}
)

// three is a checkpoint of three writers and two tensors; the second writer has only padding.
func three() [][]Part {
	return [][]Part{
		{{matrix, 0, tensors.FromValue([]int32{0, 1})}},
		{{matrix, 6, tensors.FromValue([]int32{-1, -1})}, {flag, 1, tensors.FromValue([]bool{true})}},
		{{matrix, 2, tensors.FromValue([]int32{2, 3, 4, 5})}, {flag, 0, tensors.FromScalar(true)}},
	}
}

// When Commit fails, it leaves nothing behind, and changes no other checkpoint.
func TestCommitRefuses(t *testing.T) {
	name := func(writer int, s *Shared) string { return filepath.Join(s.Path(), fileOf(writer)) }
	for _, c := range []struct {
		what  string
		spoil func(s *Shared, tree *params.Tree, written *[]Written) error
		want  string
	}{
		{"a part twice", func(s *Shared, _ *params.Tree, written *[]Written) error {
			w, err := WriteParts(t.Context(), s.Path(), 3, 7, []Part{{matrix, 1, tensors.FromValue([]int32{1})}})
			*written = append(*written, w)
			return err
		}, `tensor "w": its 4 pieces do not cover its shape [2 3] exactly once`},
		{"a part twice by one writer", func(s *Shared, _ *params.Tree, written *[]Written) error {
			one := Part{matrix, 1, tensors.FromValue([]int32{1})}
			w, err := WriteParts(t.Context(), s.Path(), 3, 7, []Part{one, one})
			*written = append(*written, w)
			return err
		}, `tensor "w": its 5 pieces`},
		{"a part missing", func(_ *Shared, _ *params.Tree, written *[]Written) error {
			(*written)[0].Tensors = nil
			return nil
		}, `tensor "w": its 2 pieces do not cover`},
		{"a tensor missing", func(_ *Shared, tree *params.Tree, _ *[]Written) error {
			*tree = append(*tree, params.New("v", dtypes.Float32, 2))
			return nil
		}, `tensor "v": its 0 pieces do not cover`},
		{"a tensor too many", func(_ *Shared, tree *params.Tree, _ *[]Written) error {
			*tree = (*tree)[:1]
			return nil
		}, `data-00002.safetensors has "f", which is not in the tree`},
		{"another shape", func(_ *Shared, tree *params.Tree, _ *[]Written) error {
			*tree = params.Tree{params.New("w", dtypes.Int32, 3, 2), flag}
			return nil
		}, `data-00000.safetensors has a part of a "w" that is I32 [2 3], but in the tree it is I32 [3 2]`},
		{"another type", func(_ *Shared, tree *params.Tree, _ *[]Written) error {
			*tree = params.Tree{params.New("w", dtypes.Uint32, 2, 3), flag}
			return nil
		}, `is I32 [2 3], but in the tree it is U32 [2 3]`},
		{"an invalid tree", func(_ *Shared, tree *params.Tree, _ *[]Written) error {
			*tree = append(*tree, flag)
			return nil
		}, `both named "f"`},
		{"a writer not told of", func(_ *Shared, _ *params.Tree, written *[]Written) error {
			*written = slices.Delete(*written, 1, 2)
			return nil
		}, "data-00001.safetensors is not in the checkpoint's manifest: pass its writer"},
		{"a writer told of twice", func(_ *Shared, _ *params.Tree, written *[]Written) error {
			*written = append(*written, (*written)[1])
			return nil
		}, `file "data-00001.safetensors" is listed twice`},
		{"nothing told", func(_ *Shared, _ *params.Tree, written *[]Written) error {
			(*written)[1] = Written{}
			return nil
		}, `"" was written into the draft ""`},
		{"told of another draft", func(s *Shared, _ *params.Tree, written *[]Written) error {
			other, err := Begin(filepath.Dir(s.Path()), 7)
			if err != nil {
				return err
			}
			defer other.Discard()
			(*written)[0], err = WriteParts(t.Context(), other.Path(), 0, 7, three()[0])
			return err
		}, `"data-00000.safetensors" was written into the draft ".step-00000007.`},
		{"a name that leads elsewhere", func(_ *Shared, _ *params.Tree, written *[]Written) error {
			(*written)[1].File.Name = "../x.safetensors"
			return nil
		}, `"../x.safetensors" is not a data file's name`},
		{"a file missing", func(s *Shared, _ *params.Tree, _ *[]Written) error { return os.Remove(name(2, s)) },
			"data-00002.safetensors is missing: have all writers write again"},
		{"a file cut", func(s *Shared, _ *params.Tree, _ *[]Written) error { return os.Truncate(name(2, s), 10) },
			"data-00002.safetensors has 10 bytes, but was written with"},
		{"a file too many", func(s *Shared, _ *params.Tree, _ *[]Written) error {
			return os.WriteFile(name(9, s), nil, 0o666)
		},
			"data-00009.safetensors is not in"},
	} {
		dir := t.TempDir()
		good := save1(t, dir, 6, 0)
		s, err := Begin(dir, 7)
		must.Do(t, err)
		tree, written := slices.Clone(twoSpec), writeAll(t, s, three())
		must.Do(t, c.spoil(s, &tree, &written))
		path, err := s.Commit(t.Context(), nil, tree, written, 1)
		wantError(t, c.what, err, c.want)
		if got := listing(t, dir); path != "" || !slices.Equal(got, []string{filepath.Base(good)}) {
			t.Errorf("%s: path %q, and there are %q", c.what, path, got)
		}
		if _, err := openAndRead(t, good); err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	for _, c := range []struct {
		meta any
		keep int
		want string
	}{{func() {}, 0, "func()"}, {nil, -1, "keep is -1"}} {
		dir := t.TempDir()
		s, err := Begin(dir, 7)
		must.Do(t, err)
		_, err = s.Commit(t.Context(), c.meta, twoSpec, writeAll(t, s, three()), c.keep)
		if wantError(t, c.want, err, c.want); len(listing(t, dir)) > 0 {
			t.Errorf("%s: the draft is left", c.want)
		}
	}
	_, err := Begin(t.TempDir(), -1)
	wantError(t, "a negative step", err, "step -1")
}

// When WriteParts fails, it leaves the draft as it was.
func TestWritePartsRefuses(t *testing.T) {
	s, err := Begin(t.TempDir(), 7)
	must.Do(t, err)
	defer s.Discard()
	two := tensors.FromValue([]int32{1, 2})
	odd := tensors.FromValue([]bool{true, false})
	must.Do(t, odd.MutableBytes(func(data []byte) { data[1] = 7 }))
	nibbles := params.New("n", dtypes.Int4, 4)
	fewer, more := tensors.FromShape(shapes.Make(dtypes.Int4, 2)), tensors.FromShape(shapes.Make(dtypes.Int4, 6))
	must.Get(WriteParts(t.Context(), s.Path(), 4, 7, nil))(t)
	for _, c := range []struct {
		what         string
		path         string
		writer, step int
		part         Part
		want         string
	}{
		{"a negative writer", s.Path(), -1, 7, Part{matrix, 0, two}, "the writer is below 0"},
		{"a writer's number twice", s.Path(), 4, 7, Part{matrix, 0, two}, "every writer needs a number of its own"},
		{"another step", s.Path(), 0, 8, Part{matrix, 0, two}, "is not a draft of the step"},
		{"no draft", filepath.Dir(s.Path()), 0, 7, Part{matrix, 0, two}, "is not a draft of the step"},
		{"a draft that is gone", draftPath(s.path), 0, 7, Part{matrix, 0, two}, "committed or discarded"},
		{"no name", s.Path(), 0, 7, Part{params.New("", dtypes.Int32), 0, two}, "has no name"},
		{"no UTF-8", s.Path(), 0, 7, Part{params.New("\xff", dtypes.Int32), 0, two}, `name "\xff"`},
		{"safetensors' own name", s.Path(), 0, 7, Part{params.New(metadataKey, dtypes.Int32), 0, two}, metadataKey},
		{"no value", s.Path(), 0, 7, Part{Spec: matrix}, `the value of "w" cannot be read`},
		{"another type", s.Path(), 0, 7, Part{flag, 0, two},
			`the part of "f" has element type Int32: convert it to Bool`},
		{"before the beginning", s.Path(), 0, 7, Part{matrix, -1, two}, `a part of "w" begins at element -1`},
		{"no memory has it", s.Path(), 0, 7, Part{params.New("w", dtypes.Int32, math.MaxInt, math.MaxInt), 0, two},
			"larger than any"},
		{"a part of nibbles", s.Path(), 0, 7, Part{nibbles, 0, fewer},
			`2 elements of "n" from 0: Int4 cannot be split`},
		{"padded nibbles", s.Path(), 0, 7, Part{nibbles, 0, more}, `6 elements of "n" from 0`},
		{"a boolean that is none", s.Path(), 0, 7, Part{params.New("b", dtypes.Bool, 3), 0, odd},
			"element 1 of the booleans is 7"},
	} {
		written, err := WriteParts(t.Context(), c.path, c.writer, c.step, []Part{c.part})
		wantError(t, c.what, err, c.want, fmt.Sprintf("writer %d of step %d", c.writer, c.step))
		if got := listing(t, s.Path()); written.File.Name != "" ||
			!slices.Equal(got, []string{fileOf(4), manifestName}) {
			t.Errorf("%s: the draft has %q", c.what, got)
		}
	}
	_, err = WriteParts(t.Context(), s.Path(), 4, 7, nil)
	if !errors.Is(err, fs.ErrExist) {
		t.Errorf("%v is not fs.ErrExist", err)
	}
}

func TestReadRangesRefuses(t *testing.T) {
	nibbles := params.New("n", dtypes.Int4, 4)
	tree := params.Tree{matrix, nibbles}
	values, err := params.Zeros(tree)
	must.Do(t, err)
	path := must.Get(Save(t.Context(), t.TempDir(), 1, nil, tree, values, 0))(t)
	other := params.New("w", dtypes.Int32, 3, 2)
	for _, c := range []struct {
		want Range
		text string
	}{
		{Range{other, 0, 1}, "w has shape [2 3] in the checkpoint, [3 2] in the model; use"},
		{Range{flag, 0, 1}, "f is not in the checkpoint"},
		{Range{params.Spec{}, 0, 1}, " is not in the checkpoint"},
		{Range{matrix, -1, 2}, `2 elements of "w" from -1`},
		{Range{matrix, 0, -2}, `-2 elements of "w" from 0`},
		{Range{matrix, 0, math.MaxInt}, "choose numbers of at least 0 that fit memory"},
		{Range{matrix, 0, 1 << 50}, "choose numbers of at least 0 that fit memory"},
		{Range{nibbles, 0, 2}, "Int4 elements may not begin at a byte; read all 4"},
		{Range{nibbles, 2, 4}, "read all 4"},
	} {
		got, err := open(t, path).ReadRanges(t.Context(), []Range{{matrix, 0, 6}, c.want, c.want})
		if wantError(t, c.text, err, c.text); got != nil || strings.Count(err.Error(), c.text) > 1 {
			t.Errorf("%s: %v, and vectors %v", c.text, err, got)
		}
	}
	got, err := open(t, path).ReadRanges(t.Context(), []Range{{matrix, math.MaxInt, 2}, {matrix, 6, 0}})
	if err != nil || fmt.Sprint(got[0].Value()) != "[0 0]" || got[1].Size() != 0 {
		t.Errorf("beyond the end there are %v, %v", got, err)
	}
}

// Of two processes that begin the same step, the first to commit succeeds, and the other returns an error.
func TestSharedTwice(t *testing.T) {
	dir := t.TempDir()
	first, err1 := Begin(dir, 5)
	second, err2 := Begin(dir, 5)
	must.Do(t, errors.Join(err1, err2))
	path, err := second.Commit(t.Context(), "second", nil, writeAll(t, second, [][]Part{nil}), 0)
	must.Do(t, err)
	_, err = first.Commit(t.Context(), "first", nil, writeAll(t, first, [][]Part{nil, nil}), 0)
	_, err3 := Begin(dir, 5)
	for _, err := range []error{err, err3} {
		wantError(t, "twice", err, path, "was not changed")
		if !errors.Is(err, fs.ErrExist) {
			t.Errorf("%v is not fs.ErrExist", err)
		}
	}
	second.Discard() // which does no harm any more
	_, err = second.Commit(t.Context(), nil, nil, nil, 0)
	wantError(t, "committed before", err, "committed or discarded before")
	var meta string
	if err := open(t, path).Meta(&meta); err != nil || meta != "second" {
		t.Errorf("metadata %q, %v", meta, err)
	}
	if got := listing(t, dir); !slices.Equal(got, []string{folderName(5)}) {
		t.Errorf("there are %q", got)
	}
}
