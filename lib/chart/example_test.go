package chart_test

import (
	"fmt"

	"github.com/shardbook/shardbook/lib/chart"
)

func ExampleShow() {
	steps := []float64{0, 10, 20, 30, 40, 50}
	chart.Show(chart.Line("loss", "step", "loss (nats)",
		chart.Series{Name: "one device", X: steps, Y: []float64{2.3, 1.6, 1.1, 0.8, 0.6, 0.5}},
		chart.Series{Name: "four devices", X: steps, Y: []float64{2.3, 1.2, 0.7, 0.5, 0.4, 0.35}}))
	// Output:
	// loss
	// loss (nats) over step, 0 … 50
	// one device    █▅▃▂▁▁  2.3 → 0.5
	// four devices  █▄▂▁▁▁  2.3 → 0.35
}

func ExampleShow_error() {
	err := chart.Show(chart.Bar("step time", []string{"dp", "tp"}, chart.Series{Name: "ms", Y: []float64{5}}))
	fmt.Println(err != nil)
	// Output:
	// chart "step time": series "ms" has 1 Y for 2 categories
	// true
}

func ExampleScatter() {
	fmt.Print(chart.Scatter("memory", "parameters (M)", "peak (MiB)",
		chart.Series{Name: "dp", X: []float64{1, 10}, Y: []float64{16, 160}},
		chart.Series{Name: "fsdp", X: []float64{1, 10}, Y: []float64{4.5, 40}}).LogX().LogY().Text())
	// Output:
	// memory
	//       parameters (M)  peak (MiB)
	// dp                 1          16
	// dp                10         160
	// fsdp               1         4.5
	// fsdp              10          40
}

func ExampleBar() {
	fmt.Print(chart.Bar("step time", []string{"dp", "tp"}, chart.Series{Name: "compute", Y: []float64{5, 4}},
		chart.Series{Name: "communication", Y: []float64{1, 2.5}}).Axes("strategy", "time (ms)").Stacked().Text())
	// Output:
	// step time
	// strategy  compute  communication
	// dp              5              1
	// tp              4            2.5
}

func ExampleHeatMap() {
	fmt.Print(chart.HeatMap("bandwidth (GB/s)", []string{"to 0", "to 1"}, []string{"from 0", "from 1"},
		[][]float64{{900, 45.5}, {46, 900}}).Text())
	// Output:
	// bandwidth (GB/s)
	//         to 0  to 1
	// from 0   900  45.5
	// from 1    46   900
}

func ExampleHistogram() {
	fmt.Print(chart.Histogram("gradient norms", []float64{0, 1, 1, 2, 2, 2, 3, 4}, 4).Axes("norm", "").Text())
	// Output:
	// gradient norms
	// norm   count
	// 0 … 1      1  ██████
	// 1 … 2      2  █████████████
	// 2 … 3      3  ████████████████████
	// 3 … 4      2  █████████████
}

func ExampleGantt() {
	fmt.Print(chart.Gantt("pipeline", chart.Span{Lane: "stage 0", Label: "F0", Kind: "forward", Start: 0, End: 1},
		chart.Span{Lane: "stage 0", Label: "B0", Kind: "backward", Start: 4, End: 6},
		chart.Span{Lane: "stage 1", Label: "F0", Kind: "forward", Start: 1, End: 2},
		chart.Span{Lane: "stage 1", Label: "B0", Kind: "backward", Start: 2, End: 4},
		chart.Span{Lane: "stage 1", Label: "send", Kind: "transfer", Start: 1.5, End: 2.5}).Axes("time (ms)",
		"").Text())
	// Output:
	// pipeline
	// time (ms), 0 … 6: F forward, B backward, T transfer
	// stage 0  FFFFFFFFFF······························BBBBBBBBBBBBBBBBBBBB
	// stage 1  ··········FFFFFFFFFFBBBBBBBBBBBBBBBBBBBB····················
	//          ···············TTTTTTTTTT···································
}

func ExampleRoofline() {
	fmt.Print(chart.Roofline("operations", 1e12, 1e11, chart.Point{Name: "matmul", X: 100, Y: 8e11},
		chart.Point{Name: "add", X: 0.125, Y: 1e10}).Text())
	// Output:
	// operations
	//         intensity (FLOP/byte)  FLOP/s      roof
	// matmul                    100   8e+11     1e+12  bound by compute
	// add                     0.125   1e+10  1.25e+10  bound by memory
}

func ExampleTable() {
	fmt.Print(chart.Table("parameters", []string{"tensor", "shape", "bytes"},
		[][]string{{"wte", "(50257, 768)", "154389504"}, {"wpe", "(1024, 768)", "3145728"}}).Text())
	// Output:
	// parameters
	// tensor  shape             bytes
	// wte     (50257, 768)  154389504
	// wpe     (1024, 768)     3145728
}

func ExampleLive() {
	live := chart.NewLive()
	var losses []float64
	for _, loss := range []float64{2, 1, 0.5, 0.25} {
		losses = append(losses, loss)
		live.Show(chart.Line("loss", "step", "loss (nats)", chart.Series{Y: losses}))
	}
	live.Close()
	// Output:
	// loss
	// loss (nats) over step, 0 … 3
	//   █▄▂▁  2 → 0.25
}
