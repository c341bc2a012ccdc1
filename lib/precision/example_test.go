package precision_test

import (
	"fmt"
	"math"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/notebook"
	"github.com/shardbook/shardbook/lib/precision"
)

// The formats side by side.
func ExampleFormats() {
	fmt.Println("format bits  largest  smallest normal  subnormal  epsilon")
	for _, f := range precision.Formats() {
		fmt.Printf("%-6s %4d %8.3g %16.3g %10.3g %8.3g\n", f, f.Bits(), f.Largest(), f.SmallestNormal(),
			f.SmallestSubnormal(), f.Epsilon())
	}
	// Output:
	// format bits  largest  smallest normal  subnormal  epsilon
	// fp32     32  3.4e+38         1.18e-38    1.4e-45 1.19e-07
	// tf32     19  3.4e+38         1.18e-38   1.15e-41 0.000977
	// bf16     16 3.39e+38         1.18e-38   9.18e-41  0.00781
	// fp16     16 6.55e+04          6.1e-05   5.96e-08 0.000977
	// e5m2      8 5.73e+04          6.1e-05   1.53e-05     0.25
	// e4m3      8      448           0.0156    0.00195    0.125
	// int8      8      127                1          1        1
}

// FP16 lacks the range of BF16, and BF16 the precision of FP16.
func ExampleFormat_Round() {
	for _, f := range []precision.Format{precision.FP16, precision.BF16} {
		fmt.Println(f, f.Round(10_000*10_000), f.Round(1+0x1p-9) > 1)
	}
	// Output:
	// fp16 +Inf true
	// bf16 1.00139008e+08 false
}

// A graph can round to a format that no device supports.
func ExampleRound() {
	exec := notebook.Must(graph.NewExec(devicetest.PureGo(), func(x *graph.Node) *graph.Node {
		return precision.Round(x, precision.E4M3)
	}))
	defer exec.Finalize()
	out := notebook.Must(exec.Call([]float32{0.3, 17, 1000, 0.0001}))
	fmt.Println(out[0].Value())
	// Output: [0.3125 16 448 0]
}

// The memory of one parameter in mixed precision with Adam.
func ExamplePolicy_ParamBytes() {
	policy := notebook.Must(precision.ParsePolicy("bf16"))
	b := policy.ParamBytes()
	adam := 2 * dtypes.Float32.Size() // momentum and variance
	fmt.Println(b.Master, "+", adam, "+", b.Param, "+", b.Gradient, "=", b.Total()+adam)
	// Output: 4 + 8 + 2 + 2 = 16
}

// Gradients of 2⁻²⁰ to 2⁻³⁰ mostly underflow in FP16, unless they are scaled.
func ExampleFractionsOf() {
	var gradients []float64
	for e := -30; e <= -20; e++ {
		gradients = append(gradients, math.Ldexp(1.5, e))
	}
	var h precision.Histogram
	precision.Add(&h, gradients)
	fmt.Println(h.Exponents())
	for _, scale := range []float64{1, 1 << 16, 1 << 36} {
		fmt.Printf("%.2f\n", precision.FractionsOf(gradients, precision.FP16, scale))
	}
	// Output:
	// [-30 -29 -28 -27 -26 -25 -24 -23 -22 -21 -20]
	// {0.45 0.55 0.00}
	// {0.00 0.00 0.00}
	// {0.00 0.00 0.09}
}
