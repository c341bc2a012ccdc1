package ddp_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gonum.org/v1/gonum/mat"

	"github.com/shardbook/shardbook/lib/ddp"
)

// TestPowerSGDSums compares steps of PowerSGD with the same in float64 on D, the sum of the ranks' matrices with their
// stored errors. P spans the columns of D·Q, where the last step's Q spans the rows of its result S; the result is D
// projected on P. The space of the first step, where Q is random, is read off the result itself.
func TestPowerSGDSums(t *testing.T) {
	const steps = 8
	for _, world := range worlds {
		for _, size := range []struct{ n, m, rank int }{{6, 9, 1}, {12, 7, 2}, {20, 30, 3}} {
			n, m, rank := size.n, size.m, size.rank
			sums, _ := exchange(t, world, steps, ddp.PowerSGD(rank), bucketsOf(n*m, []int{n, m}),
				func(rank, step int, _ []float32) []float32 {
					return noise(n*m, rank, step)
				})
			kept, last := mat.NewDense(n, m, nil), dense(n, m, sums[0])
			for step, sum := range sums {
				all := mat.DenseCopyOf(kept)
				for rank := range world {
					all.Add(all, dense(n, m, noise(n*m, rank, step)))
				}
				got := dense(n, m, sum)
				var space, within, want mat.Dense
				if step == 0 {
					space.CloneFrom(got)
				} else {
					space.Mul(all, last.T())
				}
				basis := leading(t, &space, rank)
				within.Mul(basis.T(), all)
				want.Mul(basis, &within)
				if off := farthest(got, &want); off > 1e-4 {
					t.Errorf("%d ranks, %+v, step %d: %g off", world, size, step, off)
				}
				kept.Sub(all, got)
				last = got
			}
		}
	}
}

// TestPowerSGDOfLowRank has gradients whose sum has the rank that is sent, so that there is no error, and one of full
// rank, which is sent uncompressed.
func TestPowerSGDOfLowRank(t *testing.T) {
	const n, m = 15, 20
	for _, world := range worlds {
		for _, rank := range []int{1, 2, 4, n} {
			gradient := func(own, step int, _ []float32) []float32 {
				var product mat.Dense
				product.Mul(dense(n, rank, noise(n*rank, 100, step)), dense(rank, m, noise(rank*m, own, step)))
				flat := make([]float32, n*m)
				for i, x := range product.RawMatrix().Data {
					flat[i] = float32(x)
				}
				return flat
			}
			sums, _ := exchange(t, world, 3, ddp.PowerSGD(rank), bucketsOf(n*m, []int{n, m}), gradient)
			for step, sum := range sums {
				want := mat.NewDense(n, m, nil)
				for own := range world {
					want.Add(want, dense(n, m, gradient(own, step, nil)))
				}
				if off := farthest(dense(n, m, sum), want); off > 1e-4 {
					t.Errorf("%d ranks, rank %d, step %d: %g off", world, rank, step, off)
				}
			}
		}
	}
}

// TestPowerSGDStartsAnew has gradients that are zero for some steps, or much of them: Q must not stay zero.
func TestPowerSGDStartsAnew(t *testing.T) {
	const n, m = 10, 12
	sums, _ := exchange(t, 2, 20, ddp.PowerSGD(2), bucketsOf(n*m, []int{n, m}),
		func(rank, step int, _ []float32) []float32 {
			x := make([]float32, n*m)
			switch step {
			case 0, 1:
			case 2: // of rank 1
				x[0] = 1
			case 3:
				copy(x, noise(n*m, rank, step))
			}
			return x
		})
	want := make([]float32, n*m)
	want[0] = 2
	for rank := range 2 {
		for i, x := range noise(n*m, rank, 3) {
			want[i] += x
		}
	}
	got := mat.NewDense(n, m, nil)
	for _, sum := range sums {
		got.Add(got, dense(n, m, sum))
	}
	if off := farthest(got, dense(n, m, want)); off > 1e-4 {
		t.Errorf("%g off", off)
	}
}

// TestPowerSGDAgain runs the same again and again, with memory at other addresses: Go aligns 24 bytes, as one column of
// Q has here, to 16 bytes or to 8. The order of sums, and so the bits, must not depend on that.
func TestPowerSGDAgain(t *testing.T) {
	const n, m = 40, 6
	b := bucketsOf(n*m, []int{n, m})
	var between [][]float32
	run := func() [][]float32 {
		sums, _ := exchange(t, 2, 3, ddp.PowerSGD(1), b, func(rank, step int, _ []float32) []float32 {
			return noise(n*m, rank, step)
		})
		between = append(between, make([]float32, m)) // so that the next run's alternate otherwise
		return sums
	}
	want := run()
	for range 30 {
		if got := run(); !slices.EqualFunc(got, want, slices.Equal) {
			t.Fatal("another run has other bits")
		}
	}
	if len(between) != 31 {
		t.Fatal(len(between))
	}
}

// TestOrthonormalise checks the results for columns some of which nearly depend on others.
func TestOrthonormalise(t *testing.T) {
	const rows, columns = 9, 4
	for _, near := range []float32{1, 1e-3, 1e-5, 3e-7, 0} {
		x := noise(rows*columns, 0, 0)
		for i, v := range noise(rows, 0, 1) {
			a, b := &x[i], &x[rows+i]
			*a, *b = float32(math.Round(float64(9**a))), float32(math.Round(float64(9**b)))
			x[2*rows+i] = *a + 2**b + near*v
			x[3*rows+i] = 0
		}
		span := dense(columns, rows, x).Slice(0, 1, 0, rows)
		ddp.Orthonormalise(x, rows, rand.New(rand.NewPCG(1, 2)))
		q := dense(columns, rows, x)
		var products, along mat.Dense
		products.Mul(q, q.T())
		for i := range columns {
			products.Set(i, i, products.At(i, i)-1)
		}
		if off := mat.Max(&products) - mat.Min(&products); off > 1e-6 {
			t.Errorf("near by %g: %g off", near, off)
		}
		along.Mul(span, q.T())
		if norm := mat.Norm(span, 2); math.Abs(math.Abs(along.At(0, 0))/norm-1) > 1e-6 {
			t.Errorf("near by %g: the first column points elsewhere", near)
		}
	}
}

func dense(n, m int, x []float32) *mat.Dense {
	d := mat.NewDense(n, m, nil)
	for i, v := range x {
		d.Set(i/m, i%m, float64(v))
	}
	return d
}

// leading returns a basis of a matrix's columns, which must have a rank.
func leading(t *testing.T, x *mat.Dense, rank int) mat.Matrix {
	t.Helper()
	var svd mat.SVD
	if !svd.Factorize(x, mat.SVDThin) {
		t.Fatal("no singular values")
	}
	values := svd.Values(nil)
	if values[rank-1] < 1e-3*values[0] || values[rank] > 1e-5*values[0] {
		t.Fatalf("singular values %v, want rank %d", values, rank)
	}
	var u mat.Dense
	svd.UTo(&u)
	rows, _ := u.Dims()
	return u.Slice(0, rows, 0, rank)
}

// farthest is the largest difference of two matrices, in parts of the largest element.
func farthest(a, b *mat.Dense) float64 {
	var difference mat.Dense
	difference.Sub(a, b)
	largest := func(x *mat.Dense) float64 { return math.Max(mat.Max(x), -mat.Min(x)) }
	return largest(&difference) / largest(b)
}
