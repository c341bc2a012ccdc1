package memest_test

import (
	"fmt"
	"strings"

	"github.com/shardbook/shardbook/lib/cost"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/notebook"
)

func total(items []memest.Item, err error) int64 {
	notebook.Check(err)
	return memest.Stage{Items: items}.Bytes()
}

// The ZeRO paper's example: the states of 7.5 billion parameters on each of 64 devices, by stage.
func ExampleZeRO_States() {
	for stage := range 4 {
		fmt.Println(stage, memest.GB(total(memest.ZeRO{Params: 7.5e9, Stage: stage, Devices: 64}.States())))
	}
	// Output:
	// 0 120.00 GB
	// 1 31.41 GB
	// 2 16.64 GB
	// 3 1.88 GB
}

// Activations by each formula of the course notes: the part linear in the sequence length and the quadratic part. The
// notes' table says 2.9 + 2, 3.9 + 4 and 71 + 8 GB, which follows from none of them.
func ExampleNotes_Activations() {
	for _, n := range []memest.Notes{
		{Layers: 24, Width: 896, Heads: 14, Sequence: 4096, Batch: 1, Precision: 2},  // Qwen2 0.5B
		{Layers: 28, Width: 3584, Heads: 28, Sequence: 4096, Batch: 1, Precision: 2}, // Qwen2 7B
		{Layers: 64, Width: 8192, Heads: 64, Sequence: 4096, Batch: 1, Precision: 2}, // Qwen2 72B, which has 80 layers
	} {
		for _, r := range memest.Readings() {
			items := notebook.Must(n.Activations(r))
			var linear, quadratic int64
			for _, it := range items {
				if strings.Contains(it.Name, "softmax") || strings.Contains(it.Name, "quadratic") {
					quadratic += it.Bytes
				} else {
					linear += it.Bytes
				}
			}
			fmt.Printf("%d layers, %-17s %8s + %s\n", n.Layers, r, memest.GB(linear), memest.GB(quadratic))
		}
	}
	// Output:
	// 24 layers, norms together     2.99 GB + 28.19 GB
	// 24 layers, norms each         3.35 GB + 28.19 GB
	// 24 layers, printed total      3.17 GB + 28.19 GB
	// 24 layers, approximation      2.99 GB + 28.19 GB
	// 24 layers, code in a comment  2.99 GB + 28.19 GB
	// 28 layers, norms together    13.98 GB + 65.77 GB
	// 28 layers, norms each        15.62 GB + 65.77 GB
	// 28 layers, printed total     14.80 GB + 65.77 GB
	// 28 layers, approximation     13.98 GB + 65.77 GB
	// 28 layers, code in a comment 13.98 GB + 65.77 GB
	// 64 layers, norms together    73.01 GB + 343.60 GB
	// 64 layers, norms each        81.60 GB + 343.60 GB
	// 64 layers, printed total     77.31 GB + 343.60 GB
	// 64 layers, approximation     73.01 GB + 343.60 GB
	// 64 layers, code in a comment 73.01 GB + 343.60 GB
}

// The activations of a GPT-3 layer with tensor and sequence parallelism and selective recomputation.
func ExampleKorthikanti_Layer() {
	gpt3, err := cost.Preset("GPT-3 175B")
	notebook.Check(err)
	items, err := memest.Korthikanti{Model: gpt3, Tensor: 8, SequenceParallel: true, Recompute: cost.Selective}.Layer()
	for _, it := range items {
		fmt.Printf("%-29s %-10s %10d\n", it.Name, it.Formula, it.Bytes)
	}
	fmt.Println(items[2].Values, err)
	// Output:
	// first normalization's input   2*s*b*h/t     6291456
	// attention's input             2*s*b*h/t     6291456
	// queries and keys              4*s*b*h/t    12582912
	// values                        2*s*b*h/t     6291456
	// output projection's input     2*s*b*h/t     6291456
	// attention's dropout mask      s*b*h/t       3145728
	// second normalization's input  2*s*b*h/t     6291456
	// MLP's input                   2*s*b*h/t     6291456
	// GELU's input                  8*s*b*h/t    25165824
	// MLP's second matrix's input   8*s*b*h/t    25165824
	// MLP's dropout mask            s*b*h/t       3145728
	// s=2048, b=1, h=12288, t=8 <nil>
}

// GPT-3's activations on a device of the first stage, by technique.
func ExampleKorthikanti_FirstStage() {
	gpt3 := notebook.Must(cost.Preset("GPT-3 175B"))
	k := memest.Korthikanti{Model: gpt3, Tensor: 8, Pipeline: 8}
	fmt.Println("tensor parallel        ", memest.GB(total(k.FirstStage())))
	k.SequenceParallel = true
	fmt.Println("+ sequence parallel    ", memest.GB(total(k.FirstStage())))
	k.Recompute = cost.Selective
	fmt.Println("selective recomputation", memest.GB(total(k.FirstStage())))
	k.Recompute = cost.Full
	fmt.Println("full recomputation     ", memest.GB(total(k.FirstStage())))
	// Output:
	// tensor parallel         55.77 GB
	// + sequence parallel     34.45 GB
	// selective recomputation 10.29 GB
	// full recomputation      4.86 GB
}

// The states of 2.85 billion parameters with ZeRO-2 on a node of 8 GPUs. The second line is the node's memory.
func ExampleDeepSpeed_States() {
	items, err := memest.DeepSpeed{Stage: 2, Params: 2851e6, GPUsPerNode: 8}.States()
	stage := memest.Stage{Items: items}
	fmt.Println(memest.GB(stage.Bytes()), err)
	fmt.Println(memest.GB(stage.HostBytes()))
	// Output:
	// 12.12 GB <nil>
	// 136.85 GB
}

// BERT, whose documentation says 1.61 GB, in units of 2³⁰ bytes.
func ExampleAccelerate_Training() {
	fmt.Println(memest.GB(total(memest.Accelerate{Size: 433249280, DType: "float32"}.Training())))
	// Output: 1.73 GB
}
