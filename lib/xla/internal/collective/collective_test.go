package collective_test

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gomlx/compute/dtypes"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/testkernel"
	"github.com/shardbook/shardbook/lib/xla/internal/collective"
)

// strides are those of outer and inner blocks, and of devices.
type strides struct{ outer, inner, device int }

// plan is a collective of one array on each device; see plan in move.h.
type plan struct {
	name         string
	kind         int
	reduces      bool
	from, to     strides
	senders      []int
	inPlace      bool
	outer, inner int
}

// plans are all kinds of collectives between n devices.
func plans(random *rand.Rand, n int) []plan {
	outer, inner := 1+random.IntN(200), 1+random.IntN(200)
	if random.IntN(2) == 0 {
		outer = 1
	} else if random.IntN(2) == 0 {
		inner = 1
	}
	senders := random.Perm(n)
	senders[random.IntN(n)] = -1
	return []plan{
		{"all-reduce", 0, true, strides{}, strides{}, nil, random.IntN(2) == 0, 1, 1},
		{"all-gather", 1, false, strides{1, 0, 0}, strides{n, 0, 1}, nil, false, outer, 1},
		{"reduce-scatter", 2, true, strides{n, 0, 1}, strides{1, 0, 0}, nil, false, outer, 1},
		{"all-to-all to the right", 3, false, strides{n * inner, 1, inner}, strides{inner * n, n, 1}, nil, false, outer, inner},
		{"all-to-all to the left", 3, false, strides{inner * n, n, 1}, strides{n * inner, 1, inner}, nil, false, outer, inner},
		{"all-to-all in place", 3, false, strides{n, 1, 1}, strides{n, n, 1}, nil, true, outer, 1},
		{"permute", 4, false, strides{}, strides{}, senders, false, 1, 1},
	}
}

// want is what a device's result has at an element of a block of another device's operand, element by element.
func (p plan) want(in [][]float32, device, run, size int) []float32 {
	result := make([]float32, size)
	for s := range in {
		for o := range p.outer {
			for i := range p.inner {
				from := o*p.from.outer + i*p.from.inner + device*p.from.device
				to := o*p.to.outer + i*p.to.inner
				if !p.reduces {
					to += s * p.to.device
				}
				for e := range run {
					switch {
					case p.reduces:
						result[to*run+e] += in[s][from*run+e]
					case p.senders == nil || p.senders[device] == s:
						result[to*run+e] = in[s][from*run+e]
					}
				}
			}
		}
	}
	return result
}

// All tests call the kernels of all devices from one thread: a call that waited for another device would never return.

// TestBetweenPages compares all kinds, on arrays between pages that must not be touched, with a loop over elements.
func TestBetweenPages(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 9))
	for range 40 {
		ranks := 1 + random.IntN(5)
		for _, p := range plans(random, ranks) {
			run := 1 + random.IntN(200)
			if random.IntN(10) == 0 {
				run *= 100
			}
			p.check(t, random, ranks, run%(1+1_000_000/(p.outer*p.inner*ranks))+1)
		}
	}
}

func (p plan) check(t *testing.T, random *rand.Rand, ranks, run int) {
	t.Helper()
	array := func(of dtypes.DType, size int) testkernel.Array {
		a, free, err := testkernel.Guarded(random.IntN(2) == 0, of, size)
		must.Do(t, err)
		t.Cleanup(free)
		return a
	}
	numbers := []int{7, 0, p.outer, p.inner, p.from.outer, p.from.inner, p.from.device, p.to.outer, p.to.inner,
		p.to.device, 10, 2, ranks}
	if p.reduces {
		numbers[1] = 1
	}
	for device := range ranks { // a second group, which has not come
		numbers = append(numbers, ranks+device)
	}
	for device := range ranks {
		numbers = append(numbers, device)
	}
	numbers = append(numbers, p.senders...)
	list := array(dtypes.Int64, len(numbers))
	for i, n := range numbers {
		binary.NativeEndian.PutUint64(list.Data[8*i:], uint64(n))
	}
	size := p.outer * p.inner * run
	before, after := size, size
	if p.from.device > 0 {
		before *= ranks
	}
	if p.to.device > 0 {
		after *= ranks
	}
	in, out, values := make([]testkernel.Array, ranks), make([]testkernel.Array, ranks), make([][]float32, ranks)
	for r := range ranks {
		in[r] = array(dtypes.Float32, before)
		values[r] = make([]float32, before)
		for i := range values[r] {
			values[r][i] = float32(random.IntN(200) - 100)
		}
		in[r].Set(values[r])
		if out[r] = in[r]; !p.inPlace {
			out[r] = array(dtypes.Float32, after)
		}
	}
	_, kernel := collective.Kernel(p.kind)
	for _, r := range random.Perm(ranks) {
		operands, results := []testkernel.Array{in[r], list}, []testkernel.Array{out[r]}
		if wrong := testkernel.CallOn(10+r, kernel, operands, results); wrong != "" {
			t.Fatalf("%+v: %s", p, wrong)
		}
	}
	for r := range ranks {
		want := p.want(values, r, run, after)
		for i, got := range out[r].Values() {
			if got != want[i] {
				t.Fatalf("%+v, %d devices, blocks of %d: element %d of device %d is %g, want %g", p, ranks, run, i, r,
					got, want[i])
			}
		}
	}
}

// TestUneven compares random all-to-all-vs, on arrays between pages that must not be touched, with a loop over rows.
func TestUneven(t *testing.T) {
	random := rand.New(rand.NewPCG(4, 4))
	for range 60 {
		ranks, each, width := 1+random.IntN(5), 1+random.IntN(3), 1+random.IntN(70)
		if random.IntN(8) == 0 {
			width *= 300 // several parts of each result
		}
		m, rows, received := 1+random.IntN(20), 1, make([]int, ranks)
		sent := make([][]int, ranks) // by sender and group
		for s := range sent {
			sent[s] = make([]int, ranks*each)
			for range random.IntN(m + 1) {
				to := random.IntN(ranks * each)
				sent[s][to]++
				received[to/each]++
				rows = max(rows, received[to/each])
			}
		}
		rows += random.IntN(3)
		array := func(of dtypes.DType, dims ...int) testkernel.Array {
			a, free, err := testkernel.Guarded(random.IntN(2) == 0, of, dims...)
			must.Do(t, err)
			t.Cleanup(free)
			return a
		}
		numbers := []int{9, 0, 1, 1, 0, 0, 0, 0, 0, 0, 10, 1, ranks}
		for device := range ranks {
			numbers = append(numbers, device)
		}
		list := array(dtypes.Int64, len(numbers))
		for i, n := range numbers {
			binary.NativeEndian.PutUint64(list.Data[8*i:], uint64(n))
		}
		in, counts := make([]testkernel.Array, ranks), make([]testkernel.Array, ranks)
		out, want := make([]testkernel.Array, ranks), make([][]float32, ranks)
		for s := range ranks {
			in[s], counts[s], out[s] = array(dtypes.BFloat16, m, width), array(dtypes.Int32, ranks*each),
				array(dtypes.BFloat16, rows, width)
			values := make([]float32, m*width)
			for i := range values {
				values[i] = float32(random.IntN(200) - 100)
			}
			in[s].Set(values)
			out[s].Set(slices.Repeat([]float32{7}, rows*width))
			at := 0
			for i, n := range sent[s] {
				binary.NativeEndian.PutUint32(counts[s].Data[4*i:], uint32(n))
				want[i/each] = append(want[i/each], values[at:at+n*width]...)
				at += n * width
			}
		}
		_, kernel := collective.Kernel(5)
		for _, r := range random.Perm(ranks) {
			wrong := testkernel.CallOn(10+r, kernel, []testkernel.Array{in[r], counts[r], list}, out[r:r+1])
			if wrong != "" {
				t.Fatal(wrong)
			}
		}
		for r := range ranks {
			want[r] = append(want[r], make([]float32, rows*width-len(want[r]))...)
			if !slices.Equal(out[r].Values(), want[r]) {
				t.Fatalf("%d ranks, rows of %d, counts %v: rank %d received other rows", ranks, width, sent, r)
			}
		}
	}
}

// TestRefuses has calls whose operands do not fit: an error, and nothing is moved.
func TestRefuses(t *testing.T) {
	array := func(of dtypes.DType, size int) testkernel.Array {
		a, free, err := testkernel.Guarded(false, of, size)
		must.Do(t, err)
		t.Cleanup(free)
		return a
	}
	plan := func(numbers ...int) testkernel.Array {
		a := array(dtypes.Int64, len(numbers))
		for i, n := range numbers {
			binary.NativeEndian.PutUint64(a.Data[8*i:], uint64(n))
		}
		return a
	}
	good := []int{1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0, 1}
	const fit = "a collective's operands and results have types or sizes that do not fit"
	const written = "a collective's call does not have the operands, results and plan that lib/xla writes"
	_, kernel := collective.Kernel(0)
	for _, test := range []struct {
		on            int
		of            dtypes.DType
		before, after int
		plan          []int
		want          string
	}{
		{0, dtypes.Float32, 4, 5, good, fit},
		{0, dtypes.Int64, 4, 4, append([]int{1, 1, 1, 3}, good[4:]...), fit},
		{2, dtypes.Float32, 4, 4, good, "a collective runs on a device that is in none of its groups"},
		{0, dtypes.Float32, 4, 4, good[:14], written},
		{0, dtypes.Float32, 4, 4, good[:5], written},
		{0, dtypes.Float32, 4, 4, append([]int{1, 1, 0}, good[3:]...), written},
	} {
		got := testkernel.CallOn(test.on, kernel, []testkernel.Array{array(test.of, test.before), plan(test.plan...)},
			[]testkernel.Array{array(test.of, test.after)})
		if got != test.want {
			t.Errorf("%+v: error %q", test, got)
		}
	}
}
