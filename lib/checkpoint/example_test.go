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
	"github.com/shardbook/shardbook/lib/params"
)

// A run saves its parameters with the settings that made them, keeps the two newest checkpoints, and goes on from the
// latest one.
func Example() {
	dir, err := os.MkdirTemp("", "run")
	if err != nil {
		log.Fatal(err)
	}
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
	folders, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		log.Fatal(err)
	}
	for _, folder := range folders {
		fmt.Println(filepath.Base(folder))
	}

	path, err := checkpoint.Latest(dir)
	if err != nil {
		log.Fatal(err)
	}
	saved, err := checkpoint.Open(path)
	if err != nil {
		log.Fatal(err)
	}
	var s settings
	if err := saved.Meta(&s); err != nil {
		log.Fatal(err)
	}
	values, err := saved.Read(ctx, tree)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(saved.Step, s, values[0].Value(), values[1].Value())

	_, err = checkpoint.Latest(filepath.Join(dir, "elsewhere"))
	fmt.Println("none there:", errors.Is(err, fs.ErrNotExist))
	// Output:
	// step-00000001
	// step-00000002
	// 2 {2 0.0003} [[1 2] [3 2]] 2
	// none there: true
}
