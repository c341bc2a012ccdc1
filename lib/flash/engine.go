package flash

import (
	"fmt"
	"slices"

	"github.com/gomlx/compute/distributed"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/xla"
	"github.com/shardbook/shardbook/lib/xla/plugin"
)

// Engine is what computes attention. All give the same results but for rounding.
type Engine string

const (
	// Auto is CuDNN where that can (see there), else CPU where that can, else Blocks.
	Auto Engine = ""

	// Blocks are loops over blocks in the graph, for any device that XLA has and for xla.CompileAuto, too.
	Blocks Engine = "blocks"

	// CPU is a kernel in C that XLA calls on CPUs, for float32, bfloat16 and float16, in graphs compiled with
	// xla.Compile or run by a graph.Exec. Where it cannot be called, Blocks take its place. The forward pass is shared
	// among XLA's threads by 128 queries of a head; the backward pass by key heads, of each of which a thread holds the
	// gradients of keys and values, about 4·S·(D+E) bytes that XLA does not count as the program's.
	CPU Engine = "cpu"

	// CuDNN is cuDNN's fused attention on CUDA devices, as GoMLX calls it: for bfloat16 and float16, all keys or Causal
	// ones, equally many queries and keys at the usual positions, and heads of equal widths D and E that are a multiple
	// of 8 up to 128. It needs compute capability 8.0. It gives no log-sum-exp, which WithLogSumExp then computes by
	// Blocks.
	CuDNN Engine = "cudnn"
)

// Validate returns an error for an engine that there is not.
func (e Engine) Validate() error {
	if !slices.Contains([]Engine{Auto, Blocks, CPU, CuDNN}, e) {
		return fmt.Errorf("flash: engine %q: give %q, %q, %q, or nothing for the fastest", string(e), string(Blocks),
			string(CPU), string(CuDNN))
	}
	return nil
}

// engine is the one that computes the call.
func (c call) engine() Engine {
	switch {
	case c.Engine == CuDNN, c.Engine == Auto && c.onCUDA() && c.cudnnProblem() == "":
		return CuDNN
	case c.Engine != Blocks && c.q.DType() != dtypes.Float64:
		return CPU // lib/xla puts Blocks in its place where it cannot call it
	}
	return Blocks
}

// checkEngine returns an error if the engine asked for cannot compute the call.
func (c call) checkEngine() error {
	_, ours := c.q.Graph().Backend().(*xla.Backend)
	switch {
	case !ours:
		return fmt.Errorf("flash: the graph is for the backend %q, whose loops lack operations: open one with "+
			"xla.Open of this project's lib/xla",
			c.q.Graph().Backend().Name())
	case c.Engine == CPU && c.q.DType() == dtypes.Float64:
		return fmt.Errorf("flash: the engine %q has no float64: give %q", string(CPU), string(Blocks))
	case c.Engine == CuDNN && !c.onCUDA():
		return fmt.Errorf("flash: the engine %q needs a CUDA device: leave it open, or give %q", string(CuDNN),
			string(Blocks))
	case c.Engine == CuDNN && c.cudnnProblem() != "":
		return fmt.Errorf("flash: the engine %q cannot: %s: leave it open, or give %q", string(CuDNN), c.cudnnProblem(),
			string(Blocks))
	}
	return nil
}

func (c call) onCUDA() bool {
	b, ours := c.q.Graph().Backend().(*xla.Backend)
	return ours && b.Info().Platform == plugin.CUDA && c.q.Graph().DistributedStrategy() != distributed.AutoSharding
}

// cudnnProblem says why cuDNN cannot compute the call; "" if it can.
func (c call) cudnnProblem() string {
	switch {
	case !c.q.DType().IsHalfPrecision():
		return fmt.Sprintf("its type is %s, not bfloat16 or float16", c.q.DType())
	case c.Window != 0 || c.QuerySegments != nil || c.QueryPositions != nil || c.KeyPositions != nil:
		return "its mask has a window, segments or positions"
	case c.queries() != c.keys():
		return fmt.Sprintf("%d queries and %d keys are not equally many", c.queries(), c.keys())
	case c.d() != c.e() || c.d()%8 != 0 || c.d() > 128:
		return fmt.Sprintf("heads of width %d and %d are not equal multiples of 8 up to 128", c.d(), c.e())
	}
	return ""
}

// forward returns the output, (B,T,H,E) of the type, and for each query, (B,T,H), the largest score m and the sum d of
// e^(score−m): −∞ and 0 of one that sees no key.
func (c call) forward(of dtypes.DType) (out, m, d *graph.Node) {
	if c.engine() == CPU {
		return c.kernelForward(of)
	}
	return c.blocksForward(of)
}

// backward returns the gradients of q, k and v, of their types, given what forward returned.
func (c call) backward(out, m, d, dOut *graph.Node) (dq, dk, dv *graph.Node) {
	if c.engine() == CPU {
		return c.kernelBackward(out, m, d, dOut)
	}
	return c.blocksBackward(out, m, d, dOut)
}
