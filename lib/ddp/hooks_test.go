package ddp_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/gomlx/compute/dtypes"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/params"
)

// counting is a view of a group that counts what its calls are given.
type counting struct {
	group.Group
	bytes int
}

func (c *counting) Do(ctx context.Context, call group.Call) error {
	c.bytes += call.In.Len * call.Type.Size()
	return c.Group.Do(ctx, call)
}

// exchange has ranks reduce buckets with a hook, step after step. A rank's gradients, those of all buckets one after
// another, are a function of the step and of the previous result. It returns the result of each step, which must have
// the same bits on all ranks, and the bytes of a rank's calls in a step.
func exchange(t *testing.T, world, steps int, hook func() ddp.Hook, buckets []ddp.Bucket,
	gradient func(rank, step int, before []float32) []float32) (sums [][]float32, bytes int) {
	t.Helper()
	all := make([][][]float32, world)
	if err := group.Run(context.Background(), world, func(ctx context.Context, g group.Group) error {
		own, counted := hook(), &counting{Group: g}
		var before []float32
		for step := range steps {
			values := slices.Clone(gradient(g.Rank(), step, before))
			at := 0
			for i, b := range buckets {
				if err := own.Reduce(ctx, counted, gradients(b, i, values[at:at+b.Size])); err != nil {
					return err
				}
				at += b.Size
			}
			all[g.Rank()] = append(all[g.Rank()], values)
			before = values
		}
		if g.Rank() == 0 {
			bytes = counted.bytes / steps
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for step, sum := range all[0] {
		for rank := range all {
			for i, x := range all[rank][step] {
				if math.Float32bits(x) != math.Float32bits(sum[i]) {
					t.Fatalf("step %d, element %d: %v on rank 0, %v on rank %d", step, i, sum[i], x, rank)
				}
			}
		}
	}
	return all[0], bytes
}

func gradients(b ddp.Bucket, index int, values []float32) ddp.Gradients {
	return ddp.Gradients{Params: b.Params, Offsets: b.Offsets, Unit: index, Type: group.Float32,
		Data: group.Buffer{Data: unsafe.Pointer(unsafe.SliceData(values)), Len: len(values)}}
}

// bucketsOf puts arrays of some dimensions into buckets of at most elements each.
func bucketsOf(elements int, dimensions ...[]int) []ddp.Bucket {
	var tree params.Tree
	for i, d := range dimensions {
		tree = append(tree, params.New(fmt.Sprint("p", i), dtypes.Float32, d...))
	}
	return ddp.Buckets(tree, dtypes.Float32, int64(4*elements))
}

// mixed has vectors and matrices, of which one is too small to be made smaller, in two buckets.
func mixed() []ddp.Bucket {
	return bucketsOf(100, []int{6, 8}, []int{8}, nil, []int{4, 3, 5}, []int{2, 2}, []int{5})
}

func sizeOf(buckets []ddp.Bucket) (n int) {
	for _, b := range buckets {
		n += b.Size
	}
	return n
}

// noise is gradients drawn from a normal distribution, the same whoever asks.
func noise(n, rank, step int) []float32 {
	random := rand.New(rand.NewPCG(uint64(rank), uint64(step)))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(random.NormFloat64())
	}
	return x
}

var worlds = []int{1, 2, 3, 5}

// forgetful is a hook with no memory: another one at each step.
type forgetful func() ddp.Hook

func (f forgetful) Reduce(ctx context.Context, g group.Group, grads ddp.Gradients) error {
	return f().Reduce(ctx, g, grads)
}

// TestHooksLoseNothing feeds gradients and then zeros until all stored errors must have been sent: the results must add
// up to all gradients. The group rounds sums of bfloat16, by 2⁻⁹ each.
func TestHooksLoseNothing(t *testing.T) {
	const fed, steps = 12, 40
	buckets := mixed()
	n := sizeOf(buckets)
	for _, test := range []struct {
		hook    string
		rounded float64
	}{{"bf16", 0x1p-9}, {"fp8", 0}, {"topk:0.05", 0}, {"topk:1e-9", 0}, {"powersgd:1", 0}, {"powersgd:2", 0}} {
		hook := must.Get(ddp.ParseHook(test.hook))(t)
		for _, world := range worlds {
			steps := steps
			if test.hook == "topk:1e-9" { // one element of a bucket at a step
				steps = fed + n
			}
			sums, _ := exchange(t, world, steps, hook, buckets, func(rank, step int, _ []float32) []float32 {
				if step >= fed {
					return make([]float32, n)
				}
				return noise(n, rank, step)
			})
			for i := range n {
				var want, got float64
				bound := 2e-5 * float64(world)
				for step := range fed {
					for rank := range world {
						want += float64(noise(n, rank, step)[i])
					}
				}
				for _, sum := range sums {
					got += float64(sum[i])
					bound += test.rounded * math.Abs(float64(sum[i]))
				}
				if math.Abs(got-want) > bound {
					t.Fatalf("%s, %d ranks: element %d: the steps gave %g, the gradients are %g", test.hook, world, i,
						got, want)
				}
			}
		}
	}
}

// TestHooksCompress compares the bytes of the calls with the formulas in the hooks' doc comments.
func TestHooksCompress(t *testing.T) {
	buckets := mixed()
	n := sizeOf(buckets)
	if len(buckets) != 2 || buckets[0].Size != 78 || buckets[1].Size != 48 {
		t.Fatalf("%v", buckets)
	}
	for name, want := range map[string]int{
		"bf16":         2 * n,
		"fp8":          4 * (78/3 + 4 + 48/3 + 4),
		"topk:0.1":     8 * (8 + 5),
		"topk:1e-9":    8 * 2,
		"topk:1":       8 * n,
		"powersgd:1":   4 * ((4 + 15) + (6 + 8) + (n - 4*15 - 6*8)), // (2+2)·1 is no less than 2·2
		"powersgd:3":   4 * (3*(4+15) + 3*(6+8) + (n - 4*15 - 6*8)),
		"powersgd:4":   4 * n, // 4·(4+15) > 60, and 4·(6+8) > 48
		"PowerSGD:999": 4 * n,
	} {
		hook := must.Get(ddp.ParseHook(name))(t)
		_, got := exchange(t, 3, 2, hook, buckets,
			func(rank, step int, _ []float32) []float32 { return noise(n, rank, step) })
		if got != want {
			t.Errorf("%s: %d bytes, want %d", name, got, want)
		}
	}
}

// TestHooksShowWhatIsNotFinite puts an infinity, or a NaN that bfloat16 has no room for, into one rank's gradients. It
// must reach the sum, and must not be there at the steps that follow.
func TestHooksShowWhatIsNotFinite(t *testing.T) {
	const spoiled = 1
	buckets := mixed()
	n := sizeOf(buckets)
	for _, bad := range []float32{float32(math.Inf(-1)), math.Float32frombits(0x7f800001)} {
		for _, hook := range []func() ddp.Hook{ddp.BF16(), ddp.FP8(), ddp.TopK(0.05), ddp.PowerSGD(1)} {
			for _, places := range [][]int{{3}, {20}, {n - 1}, {15, 16, 17, 18, 19, 20, 21, 22, 23}} {
				sums, _ := exchange(t, 3, 6, hook, buckets, func(rank, step int, _ []float32) []float32 {
					x := noise(n, rank, step)
					if rank == 2 && step == spoiled {
						for _, i := range places {
							x[i] = bad
						}
					}
					return x
				})
				for step, sum := range sums {
					if step == spoiled {
						if x := float64(sum[places[0]]); !math.IsNaN(x) && (bad != bad || !math.IsInf(x, -1)) {
							t.Errorf("%T with %v at %d: %v", hook(), bad, places, x)
						}
					} else if i := slices.IndexFunc(sum, func(x float32) bool { return x-x != 0 }); i >= 0 {
						t.Errorf("%T with %v at %d: step %d has %v at %d", hook(), bad, places, step, sum[i], i)
					}
				}
			}
		}
	}
}

// TestErrorFeedback is gradient descent on sums of functions, one a rank, by a hook that remembers and by one that does
// not.
func TestErrorFeedback(t *testing.T) {
	// distance descends, and returns how far from the minimum it ends.
	distance := func(hook func() ddp.Hook, steps int, rate float64, start, minimum []float64,
		gradient func(rank int, x []float64) []float32) float64 {
		const world = 3
		x := make([][]float64, world)
		for rank := range x {
			x[rank] = slices.Clone(start)
		}
		exchange(t, world, steps, hook, bucketsOf(len(start), []int{len(start)}),
			func(rank, _ int, sum []float32) []float32 {
				for i, g := range sum {
					x[rank][i] -= rate * float64(g) / world
				}
				return gradient(rank, x[rank])
			})
		var square float64
		for i, m := range minimum {
			square += (x[0][i] - m) * (x[0][i] - m)
		}
		return math.Sqrt(square)
	}
	without := func(hook func() ddp.Hook) func() ddp.Hook {
		return func() ddp.Hook { return forgetful(hook) }
	}

	// Beznosikov et al. 2020, "On Biased Compression for Distributed Learning", Example 1: f(x) = ⟨a,x⟩² + |x|²/4,
	// where a differs from rank to rank. From (1,1,1) on, the largest element of each rank's gradient has the wrong
	// sign: x grows by the factor 1+11η/6 at a step.
	a := [][]float64{{-3, 2, 2}, {2, -3, 2}, {2, 2, -3}}
	gradient := func(rank int, x []float64) []float32 {
		product := a[rank][0]*x[0] + a[rank][1]*x[1] + a[rank][2]*x[2]
		g := make([]float32, 3)
		for i := range g {
			g[i] = float32(2*product*a[rank][i] + x[i]/2)
		}
		return g
	}
	const steps, rate = 400, 0.02
	start, zero := []float64{1, 1, 1}, []float64{0, 0, 0}
	if got := distance(ddp.TopK(1./3), steps, rate, start, zero, gradient); got > 0.1 {
		t.Errorf("TopK ends %g from the minimum", got)
	}
	want := math.Sqrt(3) * math.Pow(1+11*rate/6, steps-1) // the last step's gradients are not used
	if got := distance(without(ddp.TopK(1./3)), steps, rate, start, zero, gradient); math.Abs(got/want-1) > 1e-3 {
		t.Errorf("TopK without memory ends %g from the minimum, want %g", got, want)
	}

	// Ranks that pull to points of their own, against each other: at the minimum, the mean of the points, gradients
	// cancel, and rounded ones do not.
	points := make([][]float64, 3)
	mean := make([]float64, 10)
	for rank := range points {
		for i, x := range noise(len(mean), rank, 0) {
			points[rank] = append(points[rank], float64(x))
			mean[i] += float64(x) / 3
		}
	}
	pull := func(rank int, x []float64) []float32 {
		g := make([]float32, len(x))
		for i := range g {
			g[i] = float32(x[i] - points[rank][i])
		}
		return g
	}
	with := distance(ddp.BF16(), 1000, 0.02, make([]float64, len(mean)), mean, pull)
	if none := distance(without(ddp.BF16()), 1000, 0.02, make([]float64, len(mean)), mean, pull); with > none/10 {
		t.Errorf("BF16 ends %g from the minimum, and without memory %g", with, none)
	}
}

func TestHookNames(t *testing.T) {
	for _, name := range []string{"bf16", "BF16", "fp8", "topk:0.01", "TopK:1", "powersgd:4"} {
		if hook, err := ddp.ParseHook(name); err != nil || hook == nil || hook() == nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for name, want := range map[string]string{
		"":               `"": choose bf16, fp8, topk:FRACTION`,
		"fp4":            `"fp4"`,
		"fp8:1":          `"fp8:1"`,
		"bf16:":          `"bf16:"`,
		"bf16:2":         `"bf16:2"`,
		"topk":           `"topk"`,
		"topk:":          `"topk:"`,
		"topk:some":      `"topk:some"`,
		"topk:0":         "fraction is 0: ",
		"topk:1.5":       "fraction is 1.5: set it above 0",
		"topk:-1":        "fraction is -1",
		"topk:nan":       "fraction is NaN",
		"topk:0.1:2":     `"topk:0.1:2"`,
		"powersgd":       `"powersgd"`,
		"powersgd:1.5":   `"powersgd:1.5"`,
		"powersgd:0":     "rank is 0: set it to at least 1",
		"powersgd:-3":    "rank is -3",
		"powersgd:1e999": `"powersgd:1e999"`,
	} {
		if hook, err := ddp.ParseHook(name); hook != nil || err == nil || !strings.HasPrefix(err.Error(), "ddp: ") ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", name, err, want)
		}
	}
}

func TestHooksRefuse(t *testing.T) {
	b := bucketsOf(6, []int{2, 3})[0]
	float64s := ddp.Gradients{Params: b.Params, Offsets: b.Offsets, Type: group.Float64}
	floats := gradients(b, 0, make([]float32, 6))
	for _, test := range []struct {
		hook  func() ddp.Hook
		grads ddp.Gradients
		want  string
	}{
		{ddp.TopK(1.5), floats, "ddp: TopK's fraction is 1.5: set it above 0"},
		{ddp.PowerSGD(0), floats, "ddp: PowerSGD's rank is 0: set it to at least 1"},
		{ddp.BF16(), float64s, "float32 only"},
		{ddp.TopK(0.5), float64s, "float32 only"},
		{ddp.PowerSGD(1), float64s, "float32 only"},
	} {
		err := group.Run(context.Background(), 2, func(ctx context.Context, g group.Group) error {
			return test.hook().Reduce(ctx, g, test.grads)
		})
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%T: %v, want %s", test.hook(), err, test.want)
		}
	}
}
