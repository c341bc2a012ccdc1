package cost_test

import (
	"fmt"
	"strings"

	"github.com/shardbook/shardbook/lib/cost"
	"github.com/shardbook/shardbook/lib/notebook"
)

// The parameters of a published model, by part.
func ExampleModel_Params() {
	m := notebook.Must(cost.Preset("Llama 3 8B"))
	p := m.Params()
	fmt.Println("token table", p.Embeddings)
	fmt.Println("attention  ", p.Attention)
	fmt.Println("MLP        ", p.MLP)
	fmt.Println("norms      ", p.Norms+p.LastNorm)
	fmt.Println("head       ", p.Head)
	fmt.Println("together   ", p.Total())
	// Output:
	// token table 525336576
	// attention   1342177280
	// MLP         5637144576
	// norms       266240
	// head        525336576
	// together    8030261248
}

// A model that is not a preset, from its config.json.
func ExampleReadConfig() {
	m, err := cost.ReadConfig(strings.NewReader(`{"model_type": "llama", "num_hidden_layers": 30, "hidden_size": 576,
		"num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 1536, "vocab_size": 49152,
		"max_position_embeddings": 8192, "tie_word_embeddings": true}`))
	fmt.Println(m.Params().Total(), err)
	// Output: 134515008 <nil>
}

// The training time of GPT-3 on V100s that attain 28 TFLOP/s.
func ExampleTrainingTime() {
	gpt3 := notebook.Must(cost.Preset("GPT-3 175B"))
	forward, backward := cost.RoughFLOPs(float64(gpt3.Params().Total()), 300e9)
	for _, devices := range []int{1, 1024} {
		took, err := cost.TrainingTime(forward+backward, devices, 125e12, 28./125)
		fmt.Println(devices, took, err)
	}
	// Output:
	// 1 356 years <nil>
	// 1024 127 days <nil>
}

// The part of a step's FLOPs that attention takes, by sequence length.
func ExampleModel_FLOPs() {
	m := notebook.Must(cost.Preset("Llama 3.1 8B"))
	for _, length := range []int{2048, 8192, 32768, 131072} {
		w := notebook.Must(m.FLOPs(cost.Step{Sequences: 1, Length: length, Causal: true}))
		core := w.Forward.Scores + w.Forward.Values
		fmt.Printf("%6d tokens: %.3g FLOPs, %2.0f%% of them scores and values\n", length, w.Model(),
			100*core/w.Forward.Total())
	}
	// Output:
	//   2048 tokens: 9.55e+13 FLOPs,  3% of them scores and values
	//   8192 tokens: 4.22e+14 FLOPs, 13% of them scores and values
	//  32768 tokens: 2.32e+15 FLOPs, 36% of them scores and values
	// 131072 tokens: 1.94e+16 FLOPs, 70% of them scores and values
}

// With more tensor-parallel ranks there is less computation to hide the communication, and beyond a node the links are
// slower as well.
func ExampleRates_TensorParallel() {
	h100 := notebook.Must(cost.Accelerator("H100 SXM"))
	peak := notebook.Must(h100.PeakFLOPS("bf16"))
	cluster := cost.Cluster{Hardware: h100, DevicesPerNode: 8,
		Intra: cost.Link{Latency: 2e-6, Bandwidth: 450e9}, // NVLink, one direction
		Inter: cost.Link{Latency: 5e-6, Bandwidth: 50e9},  // 400 Gbit/s for each device
	}
	for _, ranks := range []int{2, 8, 16} {
		link := notebook.Must(cluster.Between(ranks, 1))
		rates := cost.Rates{FLOPS: peak, Bandwidth: link.Bandwidth, ElementBytes: 2}
		o := notebook.Must(rates.TensorParallel(8192, 4096, ranks))
		fmt.Printf("%d ranks: %v beside %v, hidden: %v\n", ranks, o.Communication, o.Computation, o.Hidden)
	}
	// Output:
	// 2 ranks: 74.6 µs beside 278 µs, hidden: true
	// 8 ranks: 130 µs beside 69.5 µs, hidden: false
	// 16 ranks: 1.26 ms beside 34.7 µs, hidden: false
}
