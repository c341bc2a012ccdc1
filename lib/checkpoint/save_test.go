package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/gobackend"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/params"
)

// dataName is the file that Save writes.
var dataName = fileOf(0)

// random returns a tensor of random bits, including NaNs of all kinds; bytes of booleans are 0 or 1.
func random(t *testing.T, rng *rand.Rand, spec params.Spec) *tensors.Tensor {
	t.Helper()
	value := tensors.FromShape(spec.Shape)
	if err := value.MutableBytes(func(data []byte) {
		for i := range data {
			if data[i] = byte(rng.Uint32()); spec.Shape.DType == dtypes.Bool {
				data[i] &= 1
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	return value
}

func bytesOf(t *testing.T, value *tensors.Tensor) (copied []byte) {
	t.Helper()
	must.Do(t, value.ConstBytes(func(data []byte) { copied = bytes.Clone(data) }))
	return copied
}

// allTypes has an entry of each element type that a tree can have, of the given dimensions, and a scalar of each.
func allTypes(dimensions ...int) params.Tree {
	var tree params.Tree
	for _, dtype := range dtypes.DTypeValues() {
		if dtype.IsSupported() {
			tree = append(tree, params.New("a."+dtype.String(), dtype, dimensions...),
				params.New("s."+dtype.String(), dtype))
		}
	}
	return tree
}

func save1(t *testing.T, dir string, step, keep int) string {
	t.Helper()
	tree := params.Tree{params.New("w", dtypes.Float32, 3)}
	path := must.Get(Save(t.Context(), dir, step, nil, tree, []*tensors.Tensor{
		tensors.FromValue([]float32{1, 2, float32(step)})}, keep))(t)
	return path
}

func open(t *testing.T, path string) *Checkpoint {
	t.Helper()
	c := must.Get(Open(path))(t)
	return c
}

func read(t *testing.T, c *Checkpoint, tree params.Tree) []*tensors.Tensor {
	t.Helper()
	values := must.Get(c.Read(t.Context(), tree))(t)
	return values
}

// names lists a folder, including hidden files.
func listing(t *testing.T, dir string) []string {
	t.Helper()
	entries := must.Get(os.ReadDir(dir))(t)
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

func wantError(t *testing.T, what string, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error", what)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%s: error %q lacks %q", what, err, part)
		}
	}
	if !strings.HasPrefix(err.Error(), "checkpoint: ") || strings.Contains(err.Error()[1:], " checkpoint: ") {
		t.Errorf("%s: error %q must begin with the package's name, and have it once", what, err)
	}
}

// Every bit of every type is read back, in the order of any part of the tree, and in the tree's own.
func TestRoundTrip(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, dimensions := range [][]int{{1}, {7}, {3, 5}, {2, 1, 3, 2}} {
		tree := allTypes(dimensions...)
		if len(tree) != 2*len(names) {
			t.Fatalf("%d element types can be in a tree, %d have names", len(tree)/2, len(names))
		}
		values := make([]*tensors.Tensor, len(tree))
		for i, spec := range tree {
			values[i] = random(t, rng, spec)
		}
		path := must.Get(Save(t.Context(), t.TempDir(), 42, nil, tree, values, 0))(t)
		c := open(t, path)
		if got := c.Tree(); fmt.Sprint(got) != fmt.Sprint(tree) || c.Step != 42 || c.Path != path ||
			filepath.Base(path) != "step-00000042" {
			t.Errorf("step %d of %s holds\n%v, want\n%v", c.Step, c.Path, got, tree)
		}
		picked := rng.Perm(len(tree))[:1+rng.IntN(len(tree))]
		part := make(params.Tree, len(picked))
		for i, index := range picked {
			part[i] = tree[index]
		}
		for i, value := range read(t, c, part) {
			if want := values[picked[i]]; !value.Shape().Equal(want.Shape()) ||
				!bytes.Equal(bytesOf(t, value), bytesOf(t, want)) {
				t.Errorf("%s came back as %s %x, want %x", part[i], value.Shape(), bytesOf(t, value), bytesOf(t, want))
			}
		}
		read(t, c, c.Tree())
	}
}

// Names that JSON must escape are unchanged.
func TestNames(t *testing.T) {
	var tree params.Tree
	var values []*tensors.Tensor
	for _, name := range []string{`"`, `\`, "a<b>&c", "\x00\n", "größe 重", "../x", "/etc/passwd", " ", "DTYPE",
		strings.Repeat("n", 5000)} {
		tree = append(tree, params.New(name, dtypes.Float32))
		values = append(values, tensors.FromScalar(float32(len(values))))
	}
	path := must.Get(Save(t.Context(), t.TempDir(), 0, nil, tree, values, 0))(t)
	c := open(t, path)
	if got := c.Tree().Names(); !slices.Equal(got, tree.Names()) {
		t.Errorf("names %q came back as %q", tree.Names(), got)
	}
	for i, value := range read(t, c, tree) {
		if value.Value() != float32(i) {
			t.Errorf("%q = %v, want %d", tree[i].Name, value, i)
		}
	}
}

func TestMeta(t *testing.T) {
	type settings struct {
		Width int
		Betas []float64
	}
	want := settings{1 << 60, []float64{0.1, 1e-300}}
	path, err := Save(t.Context(), t.TempDir(), 1, want, nil, nil, 0)
	must.Do(t, err)
	c := open(t, path)
	var got settings
	if err := c.Meta(&got); err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("metadata %v came back as %v, %v", want, got, err)
	}
	var loose map[string]any
	if err := c.Meta(&loose); err != nil || len(loose) != 2 {
		t.Errorf("metadata as a map: %v, %v", loose, err)
	}
	var less struct{ Width int }
	wantError(t, "a target that lacks a field", c.Meta(&less), "Betas", path, "does not fit")
	wantError(t, "no pointer", c.Meta(settings{}), path)
	wantError(t, "no metadata", open(t, save1(t, t.TempDir(), 1, 0)).Meta(&got), "without metadata")
	_, err = Save(t.Context(), t.TempDir(), 1, func() {}, nil, nil, 0)
	wantError(t, "metadata that is no JSON", err, "JSON", "func()")
}

func TestSaveRefuses(t *testing.T) {
	w := params.New("w", dtypes.Float32, 2)
	value := tensors.FromValue([]float32{1, 2})
	finalized := tensors.FromValue([]float32{1, 2})
	finalized.MustFinalizeAll()
	odd := tensors.FromValue([]bool{true, false})
	must.Do(t, odd.MutableBytes(func(data []byte) { data[1] = 7 }))
	for _, c := range []struct {
		what       string
		step, keep int
		tree       params.Tree
		values     []*tensors.Tensor
		want       string
	}{
		{"a negative step", -1, 0, nil, nil, "step -1"},
		{"a negative keep", 1, -1, nil, nil, "keep is -1"},
		{"an invalid tree", 1, 0, params.Tree{w, w}, []*tensors.Tensor{value, value}, `both named "w"`},
		{"too few values", 1, 0, params.Tree{w}, nil, "0 values for the 1 parameters"},
		{"nil", 1, 0, params.Tree{w}, []*tensors.Tensor{nil}, `the value of "w" cannot be read`},
		{"a finalized tensor", 1, 0, params.Tree{w}, []*tensors.Tensor{finalized}, `the value of "w" cannot be read`},
		{"another shape", 1, 0, params.Tree{params.New("w", dtypes.Float32, 3)}, []*tensors.Tensor{value},
			`"w" has shape`},
		{"no UTF-8", 1, 0, params.Tree{params.New("\xff", dtypes.Float32, 2)}, []*tensors.Tensor{value}, `name "\xff"`},
		{"safetensors' own name", 1, 0, params.Tree{params.New("__metadata__", dtypes.Float32, 2)},
			[]*tensors.Tensor{value}, "__metadata__"},
		{"a boolean that is none", 1, 0, params.Tree{params.New("b", dtypes.Bool, 2)}, []*tensors.Tensor{odd},
			"element 1 of the booleans is 7"},
	} {
		dir := t.TempDir()
		_, err := Save(t.Context(), dir, c.step, nil, c.tree, c.values, c.keep)
		wantError(t, c.what, err, c.want)
		if left := listing(t, dir); len(left) > 0 {
			t.Errorf("%s: %q was left behind", c.what, left)
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	must.Do(t, os.WriteFile(file, nil, 0o666))
	_, err := Save(t.Context(), file, 1, nil, nil, nil, 0)
	wantError(t, "a file for a folder", err, "not a directory")
}

// canceledAfter is a context that is cancelled from its n-th check on.
type canceledAfter struct {
	context.Context
	looks int
}

func (c *canceledAfter) Err() error {
	if c.looks--; c.looks <= 0 {
		return context.Canceled
	}
	return nil
}

func TestCancel(t *testing.T) {
	tree := allTypes(2)
	values := must.Get(params.Zeros(tree))(t)
	dir := t.TempDir()
	looks := 1
	for ; ; looks++ {
		_, err := Save(&canceledAfter{t.Context(), looks}, dir, 1, nil, tree, values, 0)
		if err == nil {
			break
		}
		if left := listing(t, dir); !errors.Is(err, context.Canceled) || len(left) > 0 {
			t.Fatalf("cancelled at look %d: %v, left behind %q", looks, err, left)
		}
	}
	if looks < len(tree) {
		t.Errorf("Save looks at its context %d times for %d tensors", looks-1, len(tree))
	}
	c := open(t, filepath.Join(dir, folderName(1)))
	for looks = 1; ; looks++ {
		got, err := c.Read(&canceledAfter{t.Context(), looks}, tree)
		if err == nil {
			break
		}
		if !errors.Is(err, context.Canceled) || got != nil {
			t.Fatalf("cancelled at look %d: %v, %v", looks, got, err)
		}
	}
	if looks < len(tree) {
		t.Errorf("Read looks at its context %d times for %d tensors", looks-1, len(tree))
	}
}

// ownMemory is a backend whose devices have memory of their own, as GPUs do.
type ownMemory struct{ compute.Backend }

func (ownMemory) HasSharedBuffers() bool { return false }

// Tensors are saved from devices, and leave no copies on the host.
func TestDevice(t *testing.T) {
	backend := must.Get(gobackend.New(""))(t)
	defer backend.Finalize()
	spec := params.New("w", dtypes.Float32, 2, 3)
	host := random(t, rand.New(rand.NewPCG(3, 4)), spec)
	for name, b := range map[string]compute.Backend{"shared": backend, "own": ownMemory{backend}} {
		value := must.Get(host.OnDeviceClone(b, 0))(t)
		if value.HasLocal() {
			t.Fatalf("%s: the tensor is on the host to begin with", name)
		}
		path := must.Get(Save(t.Context(), t.TempDir(), 1, nil, params.Tree{spec}, []*tensors.Tensor{value}, 0))(t)
		if value.HasLocal() || !value.Ok() {
			t.Errorf("%s: after Save the tensor has a copy on the host (%v) or is gone (%v)", name, value.HasLocal(),
				!value.Ok())
		}
		if got := read(t, open(t, path), params.Tree{spec})[0]; !bytes.Equal(bytesOf(t, got), bytesOf(t, host)) {
			t.Errorf("%s: %v came back as %v", name, host, got)
		}
	}
}
