package gpt_test

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/cache"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/pyenv"
	"github.com/shardbook/shardbook/internal/systest"
)

// transformersPins are the packages of testdata/transformers.py: those of transformers.txt, which is made there by
//
//	uv pip compile --no-deps --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
//		transformers.in -o transformers.txt
//
// and torch as the benchmarks pin it, without their other peers.
func transformersPins(t *testing.T) string {
	t.Helper()
	pins := string(must.Get(os.ReadFile("testdata/transformers.txt"))(t))
	peers := string(must.Get(os.ReadFile("../../bench/requirements.txt"))(t))
	for _, pin := range regexp.MustCompile(`(?m)^\S.*\n(?: .*\n)*`).FindAllString(peers, -1) {
		name, _, _ := strings.Cut(pin, "==")
		if !slices.Contains([]string{"jax", "jaxlib", "ml-dtypes", "mpi4py", "opt-einsum", "scipy"}, name) {
			pins += pin
		}
	}
	return pins
}

// theirs returns what testdata/transformers.py writes of each model. It installs what that needs.
func theirs(t *testing.T) map[string]arrays {
	t.Helper()
	pins := transformersPins(t)
	interpreter, version, err := pyenv.Find(t.Context(), "3.11")
	if err != nil {
		systest.Skip(t, systest.System, err)
	}
	root, err := cache.Dir("")
	if err != nil {
		systest.Skip(t, systest.System, err)
	}
	env := must.Get(cache.Part{
		Root: root, Name: "transformers", Bytes: 8e9,
		Version: fmt.Sprintf("%x", sha256.Sum256([]byte(pins+interpreter+version)))[:16],
		Install: func(ctx context.Context, dir string, report cache.Progress) error {
			return pyenv.Install(ctx, interpreter, dir, pins, report, "--no-deps", "--no-cache-dir", "--only-binary=:all:")
		},
	}.Ensure(t.Context(), nil))(t)
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), pyenv.Python(env), "-I", "testdata/transformers.py", dir)
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	all := map[string]arrays{}
	for _, path := range must.Get(filepath.Glob(filepath.Join(dir, "*.safetensors")))(t) {
		all[strings.TrimSuffix(filepath.Base(path), ".safetensors")] = readArrays(t, path)
	}
	return all
}

// array is a matrix for each index of the leading axis, or one; a vector is a matrix of one row.
type array struct {
	rows, columns int
	data          []float32
}

type arrays map[string]array

// readArrays reads a file of safetensors, all float32.
func readArrays(t *testing.T, path string) arrays {
	t.Helper()
	file := must.Get(os.ReadFile(path))(t)
	end := 8 + binary.LittleEndian.Uint64(file)
	var header map[string]struct {
		Shape   []int
		Offsets []int `json:"data_offsets"`
	}
	must.Do(t, json.Unmarshal(file[8:end], &header))
	all := arrays{}
	for name, of := range header {
		bytes := file[end:][of.Offsets[0]:of.Offsets[1]]
		shape := append([]int{1, 1}, of.Shape...)
		a := array{shape[len(shape)-2], shape[len(shape)-1], make([]float32, len(bytes)/4)}
		for i := range a.data {
			a.data[i] = math.Float32frombits(binary.LittleEndian.Uint32(bytes[4*i:]))
		}
		all[name] = a
	}
	return all
}

// half returns the first or second half of the rows of each matrix.
func (a array) half(second int) array {
	half := array{rows: a.rows / 2, columns: a.columns}
	size := half.rows * half.columns
	for at := second * size; at < len(a.data); at += 2 * size {
		half.data = append(half.data, a.data[at:at+size]...)
	}
	return half
}

// below returns matrices with the rows of all.
func below(all ...array) (joined array) {
	for _, a := range all {
		joined = array{joined.rows + a.rows, a.columns, append(joined.data, a.data...)}
	}
	return joined
}

// transposed returns the elements of each matrix, transposed.
func (a array) transposed() []float32 {
	data := make([]float32, len(a.data))
	for i, x := range a.data {
		matrix, row, column := i/(a.rows*a.columns), i/a.columns%a.rows, i%a.columns
		data[(matrix*a.columns+column)*a.rows+row] = x
	}
	return data
}
