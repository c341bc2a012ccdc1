package checkpoint_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"
	"path/filepath"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/notebook"
	"github.com/shardbook/shardbook/lib/params"
)

// A run saves its parameters with its settings, keeps the two newest checkpoints, and continues from the latest.
func Example() {
	dir, err := os.MkdirTemp("", "run")
	notebook.Check(err)
	defer os.RemoveAll(dir)

	type settings struct {
		Width int     `json:"width"`
		LR    float64 `json:"lr"`
	}
	tree := params.Tree{params.New("h0.w", dtypes.Float32, 2, 2), params.New("steps", dtypes.Int64)}
	ctx := context.Background()
	for step := range 3 {
		values := []*tensors.Tensor{
			tensors.FromFlatDataAndDimensions([]float32{1, 2, 3, float32(step)}, 2, 2),
			tensors.FromScalar(int64(step)),
		}
		if _, err := checkpoint.Save(ctx, dir, step, settings{Width: 2, LR: 3e-4}, tree, values, 2); err != nil {
			log.Fatal(err)
		}
	}
	folders := notebook.Must(filepath.Glob(filepath.Join(dir, "*")))
	for _, folder := range folders {
		fmt.Println(filepath.Base(folder))
	}

	path := notebook.Must(checkpoint.Latest(dir))
	saved := notebook.Must(checkpoint.Open(path))
	var s settings
	notebook.Check(saved.Meta(&s))
	values := notebook.Must(saved.Read(ctx, tree))
	fmt.Println(saved.Step, s, values[0].Value(), values[1].Value())

	_, err = checkpoint.Latest(filepath.Join(dir, "elsewhere"))
	fmt.Println("none there:", errors.Is(err, fs.ErrNotExist))
	// Output:
	// step-00000001
	// step-00000002
	// 2 {2 0.0003} [[1 2] [3 2]] 2
	// none there: true
}

// Two ranks each have half of a matrix's elements, one and a half rows. Both write, one commits, and three ranks
// continue, each with a third.
func ExampleBegin() {
	dir := notebook.Must(os.MkdirTemp("", "run"))
	defer os.RemoveAll(dir)

	ctx, w := context.Background(), params.New("w", dtypes.Float32, 3, 3)
	shared := notebook.Must(checkpoint.Begin(dir, 7))
	defer shared.Discard()
	var written []checkpoint.Written
	for rank, shard := range [][]float32{{0, 1, 2, 3, 4}, {5, 6, 7, 8, 0}} { // the last one is padding
		part := checkpoint.Part{Spec: w, From: 5 * rank, Value: tensors.FromValue(shard)}
		mine := notebook.Must(checkpoint.WriteParts(ctx, shared.Path(), rank, 7, []checkpoint.Part{part}))
		written = append(written, mine)
	}
	path := notebook.Must(shared.Commit(ctx, nil, params.Tree{w}, written, 0))

	saved := notebook.Must(checkpoint.Open(path))
	for rank := range 3 {
		thirds := notebook.Must(saved.ReadRanges(ctx, []checkpoint.Range{{Spec: w, From: 3 * rank, Length: 3}}))
		fmt.Println("rank", rank, "of 3 has", thirds[0].Value())
	}
	// Output:
	// rank 0 of 3 has [0 1 2]
	// rank 1 of 3 has [3 4 5]
	// rank 2 of 3 has [6 7 8]
}
