package checkpoint

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/params"
)

const writerDir = "CHECKPOINT_TEST_WRITER"

func TestKilled(t *testing.T) {
	testKilled(t, 8, func(dir string, step int, tree params.Tree, value []int32) error {
		_, err := Save(t.Context(), dir, step, nil, tree, []*tensors.Tensor{
			tensors.FromFlatDataAndDimensions(value, 50, 1000)}, 2)
		return err
	})
}

// The same with three writers, all of them killed.
func TestSharedKilled(t *testing.T) {
	testKilled(t, 6, func(dir string, step int, tree params.Tree, value []int32) error {
		s, err := Begin(dir, step)
		if err != nil {
			return err
		}
		third := len(value) / 3
		written := writeAll(t, s, [][]Part{
			{{tree[0], 0, tensors.FromValue(value[:third])}},
			{{tree[0], third, tensors.FromValue(value[third:][:third])}},
			{{tree[0], 2 * third, tensors.FromValue(value[2*third:])}},
		})
		_, err = s.Commit(t.Context(), nil, tree, written, 2)
		return err
	})
}

// testKilled kills a process that saves, several times at any moment: all checkpoints are complete, and the next
// process removes incomplete ones.
func testKilled(t *testing.T, times int, save func(dir string, step int, tree params.Tree, value []int32) error) {
	tree := params.Tree{params.New("w", dtypes.Int32, 50, 1000)}
	value := func(step int) []int32 { return slices.Repeat([]int32{int32(step)}, 50_000) }
	if dir := os.Getenv(writerDir); dir != "" { // the writer
		latest, err := Latest(dir)
		step := 0
		if err == nil {
			step = open(t, latest).Step + 1
		} else if !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		for end := step + 500; step < end; step++ { // the parent kills it long before, unless it was killed itself
			must.Do(t, save(dir, step, tree, value(step)))
		}
		return
	}
	dir, rng := t.TempDir(), rand.New(rand.NewPCG(5, 6))
	for range times {
		seen := -1
		if latest, err := Latest(dir); err == nil {
			seen = open(t, latest).Step
		}
		kill := startWriter(t, dir)
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			if steps, _ := list(dir); len(steps) > 0 && steps[len(steps)-1] > seen {
				break
			}
		}
		time.Sleep(time.Duration(rng.IntN(10_000)) * time.Microsecond)
		kill()
		steps, err := list(dir)
		if err != nil || len(steps) == 0 || steps[len(steps)-1] <= seen {
			t.Fatalf("there are steps %v after %d, %v", steps, seen, err)
		}
		for _, step := range steps {
			got := read(t, open(t, filepath.Join(dir, folderName(step))), tree)[0]
			if !slices.Equal(tensors.MustCopyFlatData[int32](got), value(step)) {
				t.Errorf("step %d holds other values", step)
			}
		}
	}
	save1(t, dir, 1<<40, 1)
	if got := listing(t, dir); !slices.Equal(got, []string{folderName(1 << 40)}) {
		t.Errorf("%q are left", got)
	}
}

// startWriter runs the test's writer in its own process, and returns a function that kills it and waits.
func startWriter(t *testing.T, dir string) (kill func()) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), writerDir+"="+dir)
	must.Do(t, cmd.Start())
	return func() {
		if err := cmd.Process.Kill(); err != nil {
			t.Errorf("the writer ended by itself: %v", err)
		}
		cmd.Wait()
	}
}
