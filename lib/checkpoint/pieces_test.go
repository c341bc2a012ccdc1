package checkpoint

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/params"
)

// cut divides a box into boxes at random.
func cut(rng *rand.Rand, start, size []int) []piece {
	axis := rng.IntN(len(size) + 2)
	if axis >= len(size) || size[axis] < 2 {
		return []piece{{Start: start, Size: size}}
	}
	at := 1 + rng.IntN(size[axis]-1)
	lower, upper, from := slices.Clone(size), slices.Clone(size), slices.Clone(start)
	lower[axis], upper[axis], from[axis] = at, size[axis]-at, start[axis]+at
	return append(cut(rng, start, lower), cut(rng, from, upper)...)
}

// elements lists the flat indices of a box's elements in row-major order, the slow way.
func elements(shape []int, p piece) (flat []int) {
	total := 1
	for _, d := range shape {
		total *= d
	}
	for i := range total {
		inside, rest := true, i
		for axis := len(shape) - 1; axis >= 0; axis-- {
			at := rest % shape[axis]
			rest /= shape[axis]
			inside = inside && at >= p.Start[axis] && at < p.Start[axis]+p.Size[axis]
		}
		if inside {
			flat = append(flat, i)
		}
	}
	return flat
}

func randomShape(rng *rand.Rand) []int {
	shape := make([]int, rng.IntN(4))
	for axis := range shape {
		shape[axis] = 1 + rng.IntN(5)
	}
	return shape
}

// checkTiling agrees with counting how often each element is covered.
func TestTiling(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 9))
	outcomes := map[bool]int{}
	for range 3000 {
		shape := randomShape(rng)
		pieces := cut(rng, make([]int, len(shape)), shape)
		for range rng.IntN(3) {
			if len(pieces) == 0 {
				break
			}
			i, j := rng.IntN(len(pieces)), rng.IntN(len(pieces))
			switch p := pieces[i]; rng.IntN(4) {
			case 0:
				pieces = slices.Delete(pieces, i, i+1)
			case 1:
				pieces = append(pieces, pieces[j])
			case 2:
				pieces[i] = pieces[j]
			case 3: // shifted, inside of the shape
				start := slices.Clone(p.Start)
				for axis := range start {
					start[axis] = rng.IntN(shape[axis] - p.Size[axis] + 1)
				}
				pieces[i].Start = start
			}
		}
		var covered []int
		for _, p := range pieces {
			covered = append(covered, elements(shape, p)...)
		}
		slices.Sort(covered)
		want := slices.Equal(covered, elements(shape, piece{Start: make([]int, len(shape)), Size: shape}))
		if err := checkTiling(shape, pieces); (err == nil) != want {
			t.Fatalf("%v in %v: %v, a count says %v", shape, pieces, err, want)
		}
		outcomes[want]++
	}
	if outcomes[true] < 300 || outcomes[false] < 300 {
		t.Errorf("tilings and others: %v", outcomes)
	}
	many := slices.Repeat([]piece{{Start: []int{0, 0}, Size: []int{1, 1}}}, maxCorners/4+1)
	if err := checkTiling([]int{2, 2}, many); err == nil || !strings.Contains(err.Error(),
		"more than this program supports") {
		t.Errorf("%d pieces: %v", len(many), err)
	}
}

func TestRuns(t *testing.T) {
	rng := rand.New(rand.NewPCG(10, 11))
	for range 1000 {
		shape := randomShape(rng)
		for _, p := range cut(rng, make([]int, len(shape)), shape) {
			var got []int
			for offset, n := range p.runs(shape) {
				for i := range n {
					got = append(got, offset+i)
				}
			}
			if want := elements(shape, p); !slices.Equal(got, want) {
				t.Fatalf("%v in %v: %v, want %v", p, shape, got, want)
			}
		}
	}
	runs := 0
	for range (piece{Start: []int{1, 0, 0}, Size: []int{2, 3, 4}}).runs([]int{4, 3, 4}) {
		runs++
	}
	if runs != 1 {
		t.Errorf("whole rows are %d runs, want 1", runs)
	}
}

// FuzzBoxes: the boxes of a range are inside of the shape, in the range's order, have exactly its elements, and are as
// few as documented.
func FuzzBoxes(f *testing.F) {
	f.Add([]byte{}, uint(0), uint(1))
	f.Add([]byte{7}, uint(2), uint(3))
	f.Add([]byte{3, 5, 1, 4}, uint(7), uint(46))
	f.Add([]byte{1, 6, 1, 4, 3}, uint(11), uint(50))
	f.Add([]byte{4, 4, 4, 4}, uint(21), uint(214))
	f.Fuzz(func(t *testing.T, axes []byte, from, length uint) {
		shape, size := []int{}, 1
		for _, d := range axes {
			if d := 1 + int(d%8); size*d <= 5000 {
				shape, size = append(shape, d), size*d
			}
		}
		begin := int(from % uint(size))
		end := begin + int(length%uint(size-begin+1))
		cut := boxes(shape, begin, end-begin)
		at := begin
		for _, p := range cut {
			flat := elements(shape, p)
			if first, next := p.span(shape); first != at || next != at+len(flat) || product(p.Size) != len(flat) {
				t.Fatalf("[%d, %d) of %v: %v begins at %d and ends at %d, the one before it ends at %d", begin, end,
					shape, p, first, next, at)
			}
			for _, i := range flat {
				if i != at {
					t.Fatalf("[%d, %d) of %v: %v has element %d in place of %d", begin, end, shape, p, i, at)
				}
				at++
			}
		}
		if at != end || len(cut) > max(1, 2*len(shape)-1) {
			t.Fatalf("[%d, %d) of %v: the boxes %v", begin, end, shape, cut)
		}
	})
}

// Tensors that were written in pieces by several ranks are assembled.
func TestReadPieces(t *testing.T) {
	rng := rand.New(rand.NewPCG(12, 13))
	for range 50 {
		tree := params.Tree{}
		var tensorsJSON, arrays []string
		var data string
		want := map[string][]byte{}
		for i, dtype := range []dtypes.DType{dtypes.Float32, dtypes.BFloat16, dtypes.Complex128, dtypes.Bool} {
			spec := params.New(fmt.Sprintf("w%d", i), dtype, randomShape(rng)...)
			tree = append(tree, spec)
			whole := bytesOf(t, random(t, rng, spec))
			want[spec.Name] = whole
			shape := append([]int{}, spec.Shape.Dimensions...)
			described := tensor{Name: spec.Name, DType: names[dtype], Shape: shape}
			for j, p := range cut(rng, make([]int, len(shape)), shape) {
				p.File, p.Array = "d.safetensors", fmt.Sprintf("%s#%d", spec.Name, j)
				described.Pieces = append(described.Pieces, p)
				begin := len(data)
				for _, element := range elements(shape, p) {
					data += string(whole[element*dtype.Size():][:dtype.Size()])
				}
				inFileType, inFileShape := inFile(dtype, p.Size)
				arrays = append(arrays, fmt.Sprintf(`"%s":{"dtype":"%s","shape":%s,"data_offsets":[%d,%d]}`,
					p.Array, inFileType, strings.ReplaceAll(fmt.Sprint(inFileShape), " ", ","), begin, len(data)))
			}
			text := must.Get(json.Marshal(described))(t)
			tensorsJSON = append(tensorsJSON, string(text))
		}
		path := handMade(t, handBuilt("{"+strings.Join(arrays, ",")+"}", data), strings.Join(tensorsJSON, ","))
		slices.Reverse(tree)
		for i, value := range read(t, open(t, path), tree) {
			if !bytes.Equal(bytesOf(t, value), want[tree[i].Name]) {
				t.Fatalf("%s came back as %x, want %x", tree[i], bytesOf(t, value), want[tree[i].Name])
			}
		}
		for range 10 {
			spec := tree[rng.IntN(len(tree))]
			ranges := make([]Range, 1+rng.IntN(3))
			for i := range ranges {
				ranges[i] = Range{spec, rng.IntN(spec.Size() + 1), 1 + rng.IntN(spec.Size()+1)}
			}
			vectors := must.Get(open(t, path).ReadRanges(t.Context(), ranges))(t)
			for i, r := range ranges {
				if got := bytesOf(t, vectors[i]); !bytes.Equal(got, sliced(r, want[spec.Name])) {
					t.Fatalf("%v came back as %x, want %x", r, got, sliced(r, want[spec.Name]))
				}
			}
		}
	}
}
