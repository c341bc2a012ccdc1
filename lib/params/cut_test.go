package params_test

import (
	"fmt"
	"log"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/params"
)

// Three query heads and one key head on two ranks: both have the key head, and the second has one query head less.
func ExampleCut() {
	cut := &params.Cut{Index: [][]int{{0, 1, 3}, {2, -1, 3}}}
	heads := tensors.FromValue([]float32{10, 20, 30, 77})
	stacked, err := cut.Stack(heads)
	if err != nil {
		log.Fatal(err)
	}
	whole, err := cut.Join(stacked, 4)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(stacked.Value(), cut.Counted(0), cut.Counted(1))
	fmt.Println(whole.Value())
	// Output:
	// [10 20 77 30 0 77] [true true true] [true false false]
	// [10 20 30 77]
}

// randomCut has every index somewhere, in any order, with copies and padding.
func randomCut(random *rand.Rand, axis, size int) *params.Cut {
	ranks := 1 + random.IntN(4)
	cut := &params.Cut{Axis: axis, Index: make([][]int, ranks)}
	length := 1
	for i := range size {
		first := random.IntN(ranks)
		for r := range ranks {
			if r == first || random.IntN(3) == 0 {
				cut.Index[r] = append(cut.Index[r], i)
			}
		}
	}
	for _, list := range cut.Index {
		length = max(length, len(list))
	}
	length += random.IntN(2)
	for r := range ranks {
		cut.Index[r] = append(cut.Index[r], slices.Repeat([]int{-1}, length-len(cut.Index[r]))...)
		random.Shuffle(length, func(i, j int) { cut.Index[r][i], cut.Index[r][j] = cut.Index[r][j], cut.Index[r][i] })
	}
	return cut
}

// places calls f for the index of each element of an array.
func places(dims []int, f func(place []int)) {
	place := make([]int, len(dims))
	var next func(axis int)
	next = func(axis int) {
		if axis == len(dims) {
			f(slices.Clone(place))
			return
		}
		for place[axis] = range dims[axis] {
			next(axis + 1)
		}
	}
	next(0)
}

// checkStack stacks and joins numbers of one type, and compares element by element.
func checkStack[T int8 | int32 | float64](t *testing.T, cut *params.Cut, dims []int) {
	t.Helper()
	element := func(place []int) T { // other than 0, and of each place of so small arrays its own
		n := 0
		for axis, i := range place {
			n = n*dims[axis] + i
		}
		return T(n + 1)
	}
	var flat, want []T
	places(dims, func(place []int) { flat = append(flat, element(place)) })
	whole := tensors.FromFlatDataAndDimensions(flat, dims...)
	stackedDims := slices.Clone(dims)
	stackedDims[cut.Axis] = cut.Ranks() * cut.Length()
	places(stackedDims, func(place []int) {
		k := place[cut.Axis]
		place[cut.Axis] = cut.Index[k/cut.Length()][k%cut.Length()]
		if place[cut.Axis] < 0 {
			want = append(want, 0)
		} else {
			want = append(want, element(place))
		}
	})
	stacked := must.Get(cut.Stack(whole))(t)
	if !slices.Equal(stacked.Shape().Dimensions, stackedDims) ||
		!slices.Equal(tensors.MustCopyFlatData[T](stacked), want) {
		t.Errorf("%+v of %v: stacked %s, want %v", cut, flat, stacked, want)
	}
	// Join ignores padding, and copies that do not count.
	place := 0
	tensors.MustMutableFlatData(stacked, func(flat []T) {
		places(stackedDims, func(at []int) {
			k := at[cut.Axis]
			if !cut.Counted(k / cut.Length())[k%cut.Length()] {
				flat[place] = 99
			}
			place++
		})
	})
	joined := must.Get(cut.Join(stacked, dims[cut.Axis]))(t)
	if !joined.Shape().Equal(whole.Shape()) || !slices.Equal(tensors.MustCopyFlatData[T](joined), flat) {
		t.Errorf("%+v of %v: joined %s", cut, flat, joined)
	}
}

func TestStackAndJoin(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, dims := range [][]int{{1}, {5}, {4, 3}, {2, 4, 3}} {
		for axis := range dims {
			for range 20 {
				cut := randomCut(random, axis, dims[axis])
				must.Do(t, cut.Validate(params.New("w", dtypes.Float32, dims...)))
				checkStack[int8](t, cut, dims)
				checkStack[int32](t, cut, dims)
				checkStack[float64](t, cut, dims)
			}
		}
	}
}

// Each index counts on the first rank that has it.
func TestCounted(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 50 {
		size := 1 + random.IntN(6)
		cut := randomCut(random, 0, size)
		for i := range size {
			first := slices.IndexFunc(cut.Index, func(list []int) bool { return slices.Contains(list, i) })
			for r, list := range cut.Index {
				if at := slices.Index(list, i); at >= 0 && cut.Counted(r)[at] != (r == first) {
					t.Errorf("%v: rank %d counts %v, and rank %d is the first with index %d", cut.Index, r,
						cut.Counted(r), first, i)
				}
			}
		}
		for r, list := range cut.Index {
			if at := slices.Index(list, -1); at >= 0 && cut.Counted(r)[at] {
				t.Errorf("%v: rank %d counts padding", cut.Index, r)
			}
		}
	}
}

func TestEvenCut(t *testing.T) {
	for _, c := range []struct {
		size, ranks int
		pad         bool
		want        [][]int
	}{
		{6, 3, false, [][]int{{0, 1}, {2, 3}, {4, 5}}},
		{5, 3, true, [][]int{{0, 1}, {2, 3}, {4, -1}}},
		{2, 4, true, [][]int{{0}, {1}, {-1}, {-1}}},
		{5, 3, false, nil},
		{0, 1, true, nil},
		{5, 0, true, nil},
	} {
		cut, err := params.EvenCut(1, c.size, c.ranks, c.pad)
		if c.want == nil {
			if !matches(err, "cannot be cut evenly") || cut != nil {
				t.Errorf("%+v: %v, %v", c, cut, err)
			}
			continue
		}
		if err != nil || cut.Axis != 1 || !slices.EqualFunc(cut.Index, c.want, slices.Equal[[]int]) {
			t.Errorf("%+v: %v, %v", c, cut, err)
		}
		if err := cut.Validate(params.New("w", dtypes.Float32, 1, c.size)); err != nil {
			t.Error(err)
		}
		if got := cut.Part(shapes.Make(dtypes.Int8, 2, c.size, 3)); !got.Equal(shapes.Make(dtypes.Int8, 2,
			len(c.want[0]), 3)) {
			t.Errorf("%+v: a part has shape %s", c, got)
		}
	}
}

// A nil cut changes nothing.
func TestNoCut(t *testing.T) {
	var none *params.Cut
	x := tensors.FromValue([]int32{1, 2})
	stacked, err := none.Stack(x)
	joined, err2 := none.Join(x, 7)
	if stacked != x || joined != x || err != nil || err2 != nil || none.Validate(tree[0]) != nil ||
		!none.Part(x.Shape()).Equal(x.Shape()) {
		t.Errorf("stacked %v, joined %v, errors %v, %v and %v, part %s", stacked, joined, err, err2,
			none.Validate(tree[0]), none.Part(x.Shape()))
	}
}

func TestCutsRefused(t *testing.T) {
	for _, c := range []struct {
		axis  int
		index [][]int
		want  string
	}{
		{1, [][]int{{2, 0}, {1, -1}}, ""},
		{1, [][]int{{-1, -1, -1}, {0, 1, 2}}, ""},
		{-1, [][]int{{0, 1}}, "its axis is -1, and the dimensions are [2 3]: choose one of the axes"},
		{2, [][]int{{0, 1}}, "its axis is 2"},
		{1, nil, "give at least one rank"},
		{1, [][]int{{}, {}}, "each at least one index"},
		{1, [][]int{{0, 1}, {2}}, "rank 1 has 1 indices and rank 0 has 2: fill up with −1"},
		{1, [][]int{{0, 1, 2}, {0, 3, 1}}, "rank 1 has index 3 along axis 1 of the dimensions [2 3]: choose from 0 " +
			"to 2"},
		{1, [][]int{{0, 1, -2}}, "rank 0 has index -2"},
		{1, [][]int{{0, 1, 2}, {2, 1, 2}}, "rank 1 has index 2 twice"},
		{1, [][]int{{0, -1}, {2, 0}}, "no rank has index 1"},
	} {
		cut := &params.Cut{Axis: c.axis, Index: c.index}
		err := cut.Validate(params.New("h1.w", dtypes.Float32, 2, 3))
		if !matches(err, c.want) || err != nil && !matches(err, `the cut of "h1.w"`) {
			t.Errorf("%+v: error %v, want %q", cut, err, c.want)
		}
		if _, err := cut.Stack(tensors.FromShape(shapes.Make(dtypes.Float32, 2, 3))); !matches(err, c.want) {
			t.Errorf("Stack by %+v: error %v, want %q", cut, err, c.want)
		}
	}
	cut := &params.Cut{Axis: 1, Index: [][]int{{2, 0}, {1, -1}}}
	for _, c := range []struct {
		stacked shapes.Shape
		size    int
		want    string
	}{
		{shapes.Make(dtypes.Bool, 2, 4), 3, ""},
		{shapes.Make(dtypes.Bool, 2, 4), 2, "rank 0 has index 2 along axis 1 of the dimensions [2 2]"},
		{shapes.Make(dtypes.Bool, 2, 4), 4, "no rank has index 3"},
		{shapes.Make(dtypes.Bool, 2, 3), 3, "is not a stack of 2 ranks with 2 indices each along axis 1: give one of " +
			"shape (Bool)[2, 4]"},
		{shapes.Make(dtypes.Bool, 2, 4), 0, "cannot be joined along axis 1 to 0 indices"},
		{shapes.Make(dtypes.Bool, 4), 3, "cannot be joined along axis 1"},
		{shapes.Make(dtypes.Int4, 2, 4), 3, "elements of less than a byte"},
	} {
		if _, err := cut.Join(tensors.FromShape(c.stacked), c.size); !matches(err, c.want) {
			t.Errorf("Join %s to %d: error %v, want %q", c.stacked, c.size, err, c.want)
		}
	}
}
