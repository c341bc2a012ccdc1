package flash_test

import (
	"math"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/flash"
	"github.com/shardbook/shardbook/lib/xla"
)

func TestErrors(t *testing.T) {
	f32 := func(dims ...int) *tensors.Tensor { return tensors.FromShape(shapes.Make(dtypes.Float32, dims...)) }
	good := [3]*tensors.Tensor{f32(2, 5, 4, 8), f32(2, 7, 2, 8), f32(2, 7, 2, 3)}
	with := func(i int, x *tensors.Tensor) [3]*tensors.Tensor { y := good; y[i] = x; return y }
	half := tensors.FromShape(shapes.Make(dtypes.BFloat16, 2, 7, 2, 8))
	for _, c := range []struct {
		args   [3]*tensors.Tensor
		change func(o *flash.Options, q *node)
		want   string
	}{
		{args: good},
		{args: with(0, f32(2, 5, 32)), want: "flash: queries are (Float32)[2, 5, 32]"},
		{args: with(1, half), want: "of one type"},
		{args: with(1, f32(3, 7, 2, 8)), want: "want (B,T,H,D), (B,S,K,D) and (B,S,K,E)"},
		{args: with(2, f32(2, 6, 2, 3)), want: "values (Float32)[2, 6, 2, 3]"},
		{args: with(0, f32(2, 5, 3, 8)), want: "3 query heads are not a multiple of 2 key heads"},
		{args: with(0, f32(2, 0, 4, 8)), want: "none may be empty"},
		{args: [3]*tensors.Tensor{tensors.FromShape(shapes.Make(dtypes.Int32, 1, 2, 1, 2)),
			tensors.FromShape(shapes.Make(dtypes.Int32, 1, 2, 1, 2)), tensors.FromShape(shapes.Make(dtypes.Int32, 1, 2,
				1, 2))}, want: "want float32, float64, bfloat16 or float16"},
		{args: good, change: func(o *flash.Options, _ *node) { o.Window = -1 }, want: "flash: Window is -1: give"},
		{args: good, change: func(o *flash.Options, _ *node) { o.Scale = math.NaN() },
			want: "flash: Scale is NaN: give a positive number"},
		{args: good, change: func(o *flash.Options, _ *node) { o.Scale = -1 }, want: "flash: Scale is -1"},
		{args: good, change: func(o *flash.Options, _ *node) { o.Block.Keys = -1 },
			want: "flash: Block is 0 queries and -1 keys"},
		{args: good, change: func(o *flash.Options, _ *node) { o.Implementation = "gpu" },
			want: `flash: unknown implementation "gpu": give`},
		{args: good, change: func(o *flash.Options, _ *node) { o.Implementation = flash.CuDNN },
			want: `flash: the implementation "cudnn" needs a CUDA device`},
		{args: good, change: func(o *flash.Options, q *node) {
			o.QuerySegments = graph.Zeros(q.Graph(), shapes.Make(dtypes.Int32, 2, 5))
		}, want: "give both or none"},
		{args: good, change: func(o *flash.Options, q *node) {
			o.KeyPositions = graph.Zeros(q.Graph(), shapes.Make(dtypes.Int32, 5))
		}, want: "flash: key positions are (Int32)[5]: want (Int32)[7]"},
		{args: good, change: func(o *flash.Options, _ *node) { o.Block.Queries = math.MaxInt }},
	} {
		_, err := devicetest.Call(xla.ThrowingErrors(func(in []*node) []*node {
			var o flash.Options
			if c.change != nil {
				c.change(&o, in[0])
			}
			return nodes{flash.Attention(in[0], in[1], in[2], o)}
		}), c.args[:]...)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("error %v, want %q", err, c.want)
		}
	}
}

func TestPartialErrors(t *testing.T) {
	x := tensors.FromShape(shapes.Make(dtypes.Float32, 1, 2, 1, 2))
	for want, build := range map[string]func(x *node) *node{
		`the implementation "cudnn" gives no partial results`: func(x *node) *node {
			return flash.Attend(x, x, x, flash.Options{Implementation: flash.CuDNN}).O
		},
		"flash: dOut is Float64: want Float32 or Float32": func(x *node) *node {
			dq, _, _ := flash.Gradients(x, x, x, flash.Attend(x, x, x, flash.Options{}),
				graph.ConvertDType(x, dtypes.Float64), flash.Options{})
			return dq
		},
		"flash: merged.D is (Float32)[1, 2, 1, 2]": func(x *node) *node {
			merged := flash.Attend(x, x, x, flash.Options{})
			merged.D = x
			dq, _, _ := flash.Gradients(x, x, x, merged, x, flash.Options{})
			return dq
		},
	} {
		_, err := devicetest.Call(xla.ThrowingErrors(func(in []*node) []*node { return nodes{build(in[0])} }), x)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	_, err := devicetest.CallOn(devicetest.PureGo(), xla.ThrowingErrors(func(in []*node) []*node {
		return nodes{flash.Attention(in[0], in[0], in[0], flash.Options{})}
	}), tensors.FromShape(x.Shape()))
	if err == nil || !strings.Contains(err.Error(), "open one with xla.Open") {
		t.Errorf("another backend: error %v", err)
	}
}
