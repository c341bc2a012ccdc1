package sequence_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/flash"
	"github.com/shardbook/shardbook/lib/sequence"
	"github.com/shardbook/shardbook/lib/xla"
)

var masks = []flash.Mask{{Causal: true}, {Causal: true, Window: 5}, {}, {Window: 4}}

// all lists every method for a number of ranks, with masks and grouped heads in turn. Ranks divide only the first
// length.
func all(ranks int) (problems []problem) {
	add := func(p problem) {
		mask := masks[(len(problems)+ranks)%len(masks)]
		p.causal, p.window, p.dtype, p.b, p.d = mask.Causal, mask.Window, dtypes.Float32, 2, 16
		if p.tokens = 10*ranks + 2; len(problems) == 0 {
			p.tokens = 12 * ranks
		}
		if p.k == 0 {
			p.h, p.k = 2, 1+len(problems)%2
		}
		problems = append(problems, p.filled())
	}
	for _, placement := range sequence.Placements() {
		for _, gather := range []bool{false, true} {
			add(problem{group: sequence.Group{Ring: "ring", Placement: placement, Gather: gather}, ring: ranks,
				ulysses: 1})
		}
	}
	return problems
}

// check compares with float64. Float32 attention with all scores had errors of up to 1.5e-6 for these problems.
func (p problem) check(t *testing.T, got result) {
	t.Helper()
	for i, e := range got.errors(p.exact()) {
		if !(e <= 2e-6) {
			t.Errorf("%v: error of %s %.3g, want at most 2e-6", p, resultNames[i], e)
		}
	}
}

// The output and the gradients are those of one device, for every method.
func TestEqualsOneDevice(t *testing.T) {
	b := devicetest.Open(t, 8)
	for _, ranks := range []int{2, 3, 4, 8} {
		problems := all(ranks)
		got, _ := run(t, b, problems...)
		for i, p := range problems {
			p.check(t, got[i])
		}
	}
	of := func(group sequence.Group, ring, ulysses, h, k int, causal bool) problem {
		return problem{group: group, ring: ring, ulysses: ulysses, b: 2, tokens: 6*ring*ulysses + 3, h: h, k: k, d: 16,
			dtype: dtypes.Float32, causal: causal}.filled()
	}
	ulysses := sequence.Group{Ulysses: "heads"}
	hybrid := func(p sequence.Placement, gather bool) sequence.Group {
		return sequence.Group{Ring: "ring", Ulysses: "heads", Placement: p, Gather: gather}
	}
	for _, problems := range [][]problem{
		{of(ulysses, 1, 2, 4, 2, true), of(ulysses, 1, 2, 4, 4, false)},
		{of(ulysses, 1, 3, 6, 3, false)},
		{of(ulysses, 1, 4, 4, 4, true)},
		{of(ulysses, 1, 8, 8, 8, false)},
		{of(hybrid(sequence.Zigzag, false), 2, 2, 4, 2, true), of(hybrid(sequence.Striped, false), 2, 2, 4, 4, false),
			of(hybrid(sequence.Zigzag, true), 2, 2, 4, 4, true)},
		{of(hybrid(sequence.Contiguous, false), 2, 4, 8, 4, true)},
		{of(hybrid(sequence.Zigzag, false), 4, 2, 2, 2, false)},
	} {
		got, _ := run(t, b, problems...)
		for i, p := range problems {
			p.check(t, got[i])
		}
	}
}

// The engine Blocks gives the same, and float64 has errors of float64.
func TestBlocks(t *testing.T) {
	b := devicetest.Open(t, 2)
	p := problem{group: sequence.Group{Ring: "ring", Placement: sequence.Zigzag}, ring: 2, ulysses: 1, b: 2, tokens: 35,
		h: 2, k: 1, d: 16, dtype: dtypes.Float32, causal: true, engine: flash.Blocks}
	wide := p
	wide.dtype = dtypes.Float64
	p, wide = p.filled(), wide.filled()
	got, _ := run(t, b, p, wide)
	p.check(t, got[0])
	for i, off := range got[1].errors(wide.exact()) {
		if !(off < 1e-14) {
			t.Errorf("error of %s in float64 is %g", resultNames[i], off)
		}
	}
}

// In bfloat16 a ring's results are within two roundings of the largest value. With Gather, whose ranks round gradients
// before the reduction, they are within four. Accumulation over hops in bfloat16 is worse.
func TestHalf(t *testing.T) {
	b := devicetest.Open(t, 8)
	p := problem{ring: 8, ulysses: 1, b: 1, tokens: 64, h: 2, k: 2, d: 8, dtype: dtypes.BFloat16, causal: true}.filled()
	ring, gather, half := p, p, p
	ring.group = sequence.Group{Ring: "ring", Placement: sequence.Striped}
	gather.group = sequence.Group{Ring: "ring", Placement: sequence.Striped, Gather: true}
	half.group = sequence.Group{Ring: "ring", Placement: sequence.Striped, Reduce: dtypes.BFloat16}
	got, _ := run(t, b, ring, gather, half)
	exact := p.exact()
	for i, r := range got[:2] {
		for j, off := range r.errors(exact) {
			largest := 0.0
			for _, x := range exact[j] {
				largest = max(largest, math.Abs(x))
			}
			if bound := largest * 0x1p-9 * float64(2+2*i); !(off <= bound) {
				t.Errorf("gather %v: error of %s %.3g, want at most %.3g, of %.3g", i == 1, resultNames[j], off, bound,
					largest)
			}
		}
	}
	for j, name := range resultNames {
		usual, worse := deviation(got[0][j], exact[j]), deviation(got[2][j], exact[j])
		t.Logf("%s: %.3g, and %.3g with accumulation in bfloat16", name, usual, worse)
		if !(worse > 1.2*usual) {
			t.Errorf("%s: standard error %.3g, and %.3g with accumulation in bfloat16: want a difference", name, usual,
				worse)
		}
	}
}

// deviation is the root of the mean square error.
func deviation(got, want []float64) float64 {
	sum := 0.0
	for i, x := range got {
		sum += (x - want[i]) * (x - want[i])
	}
	return math.Sqrt(sum / float64(len(got)))
}

// Hops without visible keys are skipped: otherwise NaN keys would give NaN results, since 0·NaN is NaN.
func TestUnseenHopsAreSkipped(t *testing.T) {
	b := devicetest.Open(t, 4)
	p := problem{group: sequence.Group{Ring: "ring"}, ring: 4, ulysses: 1, b: 1, tokens: 16, h: 1, k: 1, d: 4,
		dtype: dtypes.Float32, causal: true}.filled()
	middle := len(p.key) / 2
	for i := middle; i < len(p.key); i++ {
		p.key[i], p.value[i] = math.NaN(), math.NaN()
	}
	got, _ := run(t, b, p)
	for i := range 2 {
		for j, x := range got[0][i] {
			if math.IsNaN(x) != (j >= middle) {
				t.Fatalf("%s %d is %g: want NaN from %d on", resultNames[i], j, x, middle)
			}
		}
	}
}

// Without axes a group is one device, and its attention is flash.Attention.
func TestAlone(t *testing.T) {
	p := problem{ring: 1, ulysses: 1, b: 1, tokens: 9, h: 2, k: 1, d: 4, dtype: dtypes.Float32, causal: true}.filled()
	got := must.Value(devicetest.Call(func(in nodes) nodes {
		if p.group.Take(in[0], 1) != in[0] || p.group.Local(in[0].Graph(), 9) != 9 {
			panic(fmt.Errorf("one device does not have all tokens"))
		}
		want := flash.Attention(in[0], in[1], in[2], flash.Causal())
		return append(p.build(in), want, p.group.Positions(in[0].Graph(), 9))
	}, p.args()...))
	for i, x := range wide(got[4]) {
		if x != wide(got[0])[i] {
			t.Fatalf("output %d is %g, flash.Attention's is %g", i, wide(got[0])[i], x)
		}
	}
	if s := fmt.Sprint(got[5].Value()); s != "[0 1 2 3 4 5 6 7 8]" {
		t.Errorf("positions %s", s)
	}
}

// Recomputation does not change the gradients.
func TestCheckpoint(t *testing.T) {
	b := devicetest.Open(t, 2)
	p := problem{group: sequence.Group{Ring: "ring", Placement: sequence.Zigzag}, ring: 2, ulysses: 1, b: 1, tokens: 12,
		h: 2, k: 1, d: 4, dtype: dtypes.Float32, causal: true}.filled()
	checkpointed := p
	checkpointed.checkpoint = true
	got, _ := run(t, b, p, checkpointed)
	for i, off := range got[1].errors(got[0]) {
		if !(off <= 1e-6) {
			t.Errorf("%s differs by %g", resultNames[i], off)
		}
	}
}

// Every device takes the tokens at its positions, and a token's gradient comes from the device that has it.
func TestTake(t *testing.T) {
	b := devicetest.Open(t, 6)
	for _, c := range []struct {
		group         sequence.Group
		ring, ulysses int
	}{
		{sequence.Group{Ring: "ring", Ulysses: "heads"}, 2, 2},
		{sequence.Group{Ring: "ring", Ulysses: "heads", Placement: sequence.Striped}, 2, 3},
		{sequence.Group{Ring: "ring", Ulysses: "heads", Placement: sequence.Zigzag}, 3, 2},
		{sequence.Group{Ring: "ring", Placement: sequence.Zigzag}, 3, 1},
		{sequence.Group{Ulysses: "heads"}, 1, 4},
	} {
		const tokens, rows = 13, 2
		mesh := must.Value(b.Mesh(xla.Axis("ring", c.ring), xla.Axis("heads", c.ulysses)))
		all := xla.Shard(0, "ring", "heads")
		local := 0
		p := must.Value(xla.Compile(mesh, func(x *graph.Node) nodes {
			g := x.Graph()
			local = c.group.Local(g, tokens)
			mine := c.group.Take(x, -1) // (rows, local)
			real := graph.ConvertDType(c.group.Real(g, tokens), dtypes.Float32)
			real = graph.BroadcastToDims(graph.InsertAxes(real, 0), rows, local)
			return nodes{c.group.Positions(g, tokens), graph.TransposeAllAxes(mine, 1, 0),
				graph.Gradient(graph.ReduceAllSum(graph.Mul(graph.Mul(mine, mine), real)), x)[0]}
		}, xla.In(xla.Replicated()).Gives(all)))
		x := make([]float32, rows*tokens)
		for i := range x {
			x[i] = float32(i + 1)
		}
		out, err := p.Call(tensors.FromFlatDataAndDimensions(x, rows, tokens))
		p.Close()
		must.Do(t, err)
		ranks := c.ring * c.ulysses
		var want []int32
		for rank := range c.ring {
			for _, at := range c.group.Placement.Positions(local*ranks, c.ring, rank) {
				want = append(want, int32(at))
			}
		}
		positions := must.Value(out[0].Merge())
		if got := tensors.MustCopyFlatData[int32](positions); !slices.Equal(got, want) {
			t.Errorf("%+v: positions are %v, want %v", c.group, got, want)
		}
		taken := must.Value(out[1].Merge())
		for i, at := range want {
			for row := range rows {
				if got := wide(taken)[i*rows+row]; got != float64(x[row*tokens+min(int(at), tokens-1)]) {
					t.Fatalf("%+v: element %d of row %d is %g, want that of token %d", c.group, i, row, got, at)
				}
			}
		}
		gradients := must.Value(out[2].Merge())
		for i, x := range x {
			sum := 0.0
			for device := range ranks {
				sum += wide(gradients)[device*rows*tokens+i]
			}
			if sum != 2*float64(x) {
				t.Errorf("%+v: the gradient of element %d is %g, want %g", c.group, i, sum, 2*x)
			}
		}
	}
}

func TestErrors(t *testing.T) {
	b := devicetest.Open(t, 2)
	mesh := must.Value(b.Mesh(xla.Axis("ring", 2), xla.Axis("one", 1)))
	ring, ulysses := sequence.Group{Ring: "ring"}, sequence.Group{Ulysses: "ring"}
	f32, positions := dtypes.Float32, shapes.Make(dtypes.Int32, 4)
	for _, c := range []struct {
		group             sequence.Group
		tokens, heads, kv int
		dtype             dtypes.DType
		with              func(g *graph.Graph, o *flash.Options)
		want              string
	}{
		{sequence.Group{Ring: "ring", Placement: "spiral"}, 8, 2, 2, f32, nil,
			`unknown placement "spiral": choose "contiguous", "striped" or "zigzag"`},
		{sequence.Group{Ring: "ring", Ulysses: "ring"}, 8, 2, 2, f32, nil,
			`Ring and Ulysses both are mesh axis "ring": choose two axes`},
		{sequence.Group{Ulysses: "ring", Gather: true}, 8, 2, 2, f32, nil,
			"Gather is set without Ring: choose a mesh axis for Ring"},
		{sequence.Group{Ulysses: "ring", Placement: sequence.Zigzag}, 8, 2, 2, f32, nil,
			`Placement is "zigzag" without Ring: choose a mesh axis for Ring`},
		{sequence.Group{Ring: "ring", Reduce: dtypes.Int32}, 8, 2, 2, f32, nil,
			"Reduce is Int32: choose Float32 or BFloat16"},
		{sequence.Group{Ring: "ring", Reduce: f32}, 8, 2, 2, dtypes.Float64, nil,
			"Reduce is Float32 and attention is in Float64: leave Reduce unset"},
		{sequence.Group{Ring: "rings"}, 8, 2, 2, f32, nil, `the mesh has no axis "rings"`},
		{ring, 0, 2, 2, f32, nil, "the number of tokens is 0: choose at least 1"},
		{ring, 9, 2, 2, f32, nil, "want (B,5,H,D), (B,5,K,D) and (B,5,K,E) for a device's part of 9 tokens"},
		{ulysses, 8, 4, 1, f32, nil, "4 query heads and 1 key/value heads, which 2 devices cannot exchange evenly"},
		{ring, 8, 2, 2, f32, func(g *graph.Graph, o *flash.Options) { o.QueryPositions = graph.Zeros(g, positions) },
			"the mask has positions or segments: leave them nil"},
		{ring, 8, 3, 2, f32, nil, "3 query heads are not a multiple of 2 key heads"},
		{ring, 8, 2, 2, f32, func(_ *graph.Graph, o *flash.Options) { o.Implementation = flash.CuDNN },
			"gives no partial results"},
	} {
		p := must.Value(xla.Compile(mesh, func(q, k *graph.Node) *graph.Node {
			o := flash.Causal()
			if c.with != nil {
				c.with(q.Graph(), &o)
			}
			return c.group.Attention(q, k, k, c.tokens, o)
		}, xla.In(xla.Shard(1, "ring")).Gives(xla.Shard(1, "ring"))))
		of := func(heads int) *tensors.Tensor { return tensors.FromShape(shapes.Make(c.dtype, 1, 8, heads, 4)) }
		if err := p.Prepare(of(c.heads), of(c.kv)); err == nil || !strings.Contains(fmt.Sprint(err), c.want) {
			t.Errorf("%+v: error %v, want %q", c.group, err, c.want)
		}
		p.Close()
	}
	p := must.Value(xla.Compile(mesh, func(x *graph.Node) *graph.Node { return ring.Take(x, 1) },
		xla.In(xla.Replicated()).Gives(xla.Shard(0, "ring"))))
	if _, err := p.Call([]float32{1, 2}); err == nil || !strings.Contains(err.Error(), "and no axis 1") {
		t.Errorf("taking tokens of no axis: %v", err)
	}
}

func TestAxes(t *testing.T) {
	for want, s := range map[string]sequence.Group{"[]": {}, "[r]": {Ring: "r"}, "[u]": {Ulysses: "u"},
		"[r u]": {Ring: "r", Ulysses: "u"}} {
		if got := fmt.Sprint(s.Axes()); got != want {
			t.Errorf("axes %s, want %s", got, want)
		}
	}
}
