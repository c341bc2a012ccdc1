package params_test

import (
	"fmt"

	"github.com/gomlx/compute/dtypes"

	"github.com/shardbook/shardbook/lib/notebook"
	"github.com/shardbook/shardbook/lib/params"
)

// The values of a model are a slice in the tree's order, here of a string for each; parts are found by name.
func Example() {
	tree := params.Tree{
		params.New("embed", dtypes.Float32, 256, 64),
		params.New("block.w", dtypes.Float32, 64, 64),
		params.New("block.b", dtypes.Float32, 64),
	}
	named := notebook.Must(params.Zip(tree, []string{"table", "matrix", "bias"}))
	named["block.w"] = "another matrix"
	block := notebook.Must(tree.Under("block"))
	values := notebook.Must(named.List(block))
	for i, spec := range block {
		fmt.Println(spec, spec.Bytes(), values[i])
	}
	fmt.Println(tree.Size(), "parameters,", tree.Bytes(), "bytes")
	// Output:
	// block.w (Float32)[64, 64] 16384 another matrix
	// block.b (Float32)[64] 256 bias
	// 20544 parameters, 82176 bytes
}
