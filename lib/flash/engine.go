package flash

import (
	"fmt"
	"math"
	"slices"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/distributed"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/internal/plugin"
	"github.com/shardbook/shardbook/lib/flash/internal/kernel"
	"github.com/shardbook/shardbook/lib/xla"
)

// Implementation is an implementation of attention. All give the same results except for rounding.
type Implementation string

const (
	// Auto is CuDNN where possible, else CPU where possible, else Blocks.
	Auto Implementation = ""

	// Blocks are loops over blocks in the graph. They run on every device that XLA supports and in xla.CompileAuto.
	Blocks Implementation = "blocks"

	// CPU is a C kernel that XLA calls on CPUs, for float32, bfloat16 and float16, in graphs compiled with xla.Compile
	// or run by a graph.Exec. Where XLA cannot call it, Blocks run instead. XLA's threads divide the forward pass into
	// 128 queries of a head each, and the backward pass into key heads. In the backward pass a thread allocates about
	// 4·S·(D+E) bytes, which XLA does not count as memory of the program.
	CPU Implementation = "cpu"

	// CuDNN is cuDNN's fused attention on CUDA devices of compute capability 8.0 or later, called through GoMLX. It
	// supports bfloat16 and float16, no mask or Causal with default positions, as many queries as keys, and heads of
	// equal widths D and E that are multiples of 8 up to 128.
	CuDNN Implementation = "cudnn"
)

// Validate returns an error for an unknown engine.
func (e Implementation) Validate() error {
	if !slices.Contains([]Implementation{Auto, Blocks, CPU, CuDNN}, e) {
		return fmt.Errorf("flash: unknown implementation %q: give %q, %q, %q, or nothing for the fastest", string(e),
			string(Blocks), string(CPU), string(CuDNN))
	}
	return nil
}

// engine returns the engine that computes the call.
func (c call) engine() Implementation {
	switch {
	case c.Implementation == CuDNN, c.Implementation == Auto && c.onCUDA() && c.cudnnProblem() == "":
		return CuDNN
	case c.Implementation != Blocks && c.q.DType() != dtypes.Float64:
		return CPU // lib/xla runs Blocks instead where it cannot call the kernel
	}
	return Blocks
}

// checkEngine returns an error if the requested engine cannot compute the call.
func (c call) checkEngine() error {
	_, ours := c.q.Graph().Backend().(*xla.Backend)
	switch {
	case !ours:
		return fmt.Errorf("flash: the backend %q lacks operations that attention needs: open one with xla.Open of "+
			"lib/xla", c.q.Graph().Backend().Name())
	case c.Implementation == CPU && c.q.DType() == dtypes.Float64:
		return fmt.Errorf("flash: the implementation %q does not support float64: give %q", string(CPU), string(Blocks))
	case c.Implementation == CuDNN && !c.onCUDA():
		return fmt.Errorf("flash: the implementation %q needs a CUDA device: leave Implementation empty, or give %q",
			string(CuDNN), string(Blocks))
	case c.Implementation == CuDNN && c.cudnnProblem() != "":
		return fmt.Errorf("flash: the implementation %q cannot compute this: %s: leave Implementation empty, or "+
			"give %q", string(CuDNN), c.cudnnProblem(), string(Blocks))
	}
	return nil
}

// cudnn returns cuDNN's output. GoMLX has its gradient.
func (c call) cudnn() *graph.Node {
	out, _ := graph.BackendFusedScaledDotProductAttention(c.q, c.k, c.v, compute.AttentionAxesLayoutBSHD,
		&compute.ScaledDotProductAttentionConfig{Scale: c.Scale, Causal: c.Causal})
	return out
}

func (c call) onCUDA() bool {
	b, ours := c.q.Graph().Backend().(*xla.Backend)
	return ours && b.Info().Platform == plugin.CUDA && c.q.Graph().DistributedStrategy() != distributed.AutoSharding
}

// cudnnProblem says why cuDNN cannot compute the call, or returns "" if it can.
func (c call) cudnnProblem() string {
	switch {
	case !c.q.DType().IsHalfPrecision():
		return fmt.Sprintf("its type is %s, not bfloat16 or float16", c.q.DType())
	case c.Window != 0 || c.QuerySegments != nil || c.QueryPositions != nil || c.KeyPositions != nil:
		return "its mask has a window, segments or positions"
	case c.queries() != c.keys():
		return fmt.Sprintf("%d queries and %d keys are not the same number", c.queries(), c.keys())
	case c.d() != c.e() || c.d()%8 != 0 || c.d() > 128:
		return fmt.Sprintf("heads of width %d and %d are not equal multiples of 8 up to 128", c.d(), c.e())
	}
	return ""
}

// forward returns the output (B,T,H,E) in a type, and for each query the largest score m and the sum d of e^(score−m),
// both (B,T,H); they are −∞ and 0 for a query that sees no key.
func (c call) forward(of dtypes.DType) (out, m, d *graph.Node) {
	if c.engine() == CPU {
		return c.kernelForward(of)
	}
	return c.blocksForward(of)
}

// backward returns the gradients of q, k and v, in their types, given the results of forward.
func (c call) backward(out, m, d, dOut *graph.Node) (dq, dk, dv *graph.Node) {
	if c.engine() == CPU {
		return c.kernelBackward(out, m, d, dOut)
	}
	return c.blocksBackward(out, m, d, dOut)
}

// operands of the kernel: q, k, v, the mask's nodes (empty tensors for missing ones), and causal, window and scale.
func (c call) operands() []*graph.Node {
	g := c.q.Graph()
	in := []*graph.Node{c.q, c.k, c.v}
	for _, extra := range c.extras() {
		if *extra == nil {
			in = append(in, graph.Zeros(g, shapes.Make(dtypes.Int32, 0)))
		} else {
			in = append(in, *extra)
		}
	}
	causal := int32(0)
	if c.Causal {
		causal = 1
	}
	return append(in, graph.Const(g, []int32{causal, int32(c.Window), int32(math.Float32bits(float32(c.Scale)))}))
}

func (c call) kernelForward(of dtypes.DType) (out, m, d *graph.Node) {
	results := []shapes.Shape{c.outShape(of), c.statShape(), c.statShape()}
	r := kernel.Forward.Call(c.operands(), results, func([]*graph.Node) []*graph.Node {
		out, m, d := c.blocksForward(of)
		return []*graph.Node{out, m, d}
	})
	return r[0], r[1], r[2]
}

func (c call) kernelBackward(out, m, d, dOut *graph.Node) (dq, dk, dv *graph.Node) {
	results := []shapes.Shape{c.q.Shape(), c.k.Shape(), c.v.Shape()}
	r := kernel.Backward.Call(append(c.operands(), out, m, d, dOut), results, func([]*graph.Node) []*graph.Node {
		dq, dk, dv := c.blocksBackward(out, m, d, dOut)
		return []*graph.Node{dq, dk, dv}
	})
	return r[0], r[1], r[2]
}
