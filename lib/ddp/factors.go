package ddp

import (
	"math"
	"math/rand/v2"

	"gonum.org/v1/gonum/blas/blas32"
	"gonum.org/v1/gonum/floats"
)

// factors are what ranks send of a bucket, for PowerSGD.
type factors struct {
	first, second []float32 // the two messages: gradients as they are, then all P; all Q
	whole         []span    // gradients as they are
	matrices      []*matrix
}

// span is a part of a bucket.
type span struct{ from, to int }

// matrix is a gradient M ≈ P·Qᵀ, by rows, and its factors, by columns.
type matrix struct {
	span
	rows, columns int
	p, q          []float32 // in the messages
	own           []float32 // the rank's own part of Q
	last          []float32 // the last step's Q
}

func newFactors(g Gradients, rank int) *factors {
	f := &factors{}
	var first, second int
	for i, spec := range g.Params {
		at := span{g.Offsets[i], g.Offsets[i] + spec.Size()}
		if d := spec.Shape.Dimensions; len(d) > 1 {
			n, m := d[0], spec.Size()/d[0]
			if rank <= (n*m-1)/(n+m) { // so that rank·(n+m) < n·m, whatever the rank
				f.matrices = append(f.matrices, &matrix{span: at, rows: n, columns: m,
					own: make([]float32, rank*m), last: make([]float32, rank*m)})
				first, second = first+rank*n, second+rank*m
				continue
			}
		}
		f.whole = append(f.whole, at)
		first += spec.Size()
	}
	f.first, f.second = make([]float32, first), make([]float32, second)
	p, q := f.first, f.second // dealt out from the ends
	for _, m := range f.matrices {
		m.p, p = p[len(p)-rank*m.rows:], p[:len(p)-rank*m.rows]
		m.q, q = q[len(q)-rank*m.columns:], q[:len(q)-rank*m.columns]
	}
	return f
}

// row is M's i-th row, in a bucket.
func (m *matrix) row(bucket []float32, i int) []float32 {
	return bucket[m.from+i*m.columns:][:m.columns]
}

// computeP computes P = M·Q, with the last step's Q.
func (m *matrix) computeP(bucket []float32) {
	for i := range m.rows {
		row := m.row(bucket, i)
		for j := 0; j*m.columns < len(m.last); j++ {
			m.p[j*m.rows+i] = dot(row, column(m.last, j, m.columns))
		}
	}
}

// computeQ computes Q = Mᵀ·P.
func (m *matrix) computeQ(bucket []float32) {
	clear(m.q)
	for i := range m.rows {
		row := m.row(bucket, i)
		for j := 0; j*m.columns < len(m.q); j++ {
			add(column(m.q, j, m.columns), m.p[j*m.rows+i], row)
		}
	}
}

// multiply makes P·Qᵀ of the sums, and leaves of M what the rank's own part of that lacks.
func (m *matrix) multiply(sums, bucket []float32) {
	for i := range m.rows {
		row, rest := m.row(sums, i), m.row(bucket, i)
		clear(row)
		for j := 0; j*m.columns < len(m.q); j++ {
			p := m.p[j*m.rows+i]
			add(rest, -p, column(m.own, j, m.columns))
			add(row, p, column(m.q, j, m.columns))
		}
	}
}

func column(x []float32, j, length int) []float32 { return x[j*length:][:length] }

// add adds a·x to y.
func add(y []float32, a float32, x []float32) { blas32.Axpy(a, vector(x), vector(y)) }

func vector(x []float32) blas32.Vector { return blas32.Vector{N: len(x), Inc: 1, Data: x} }

// dot is the product of two vectors. gonum's sums in an order that depends on where in memory they lie, so that two
// runs would differ in bits.
func dot[T float32 | float64](x, y []T) T {
	var a, b, c, d T
	y = y[:len(x)]
	i := 0
	for ; i+4 <= len(x); i += 4 {
		a += x[i] * y[i]
		b += x[i+1] * y[i+1]
		c += x[i+2] * y[i+2]
		d += x[i+3] * y[i+3]
	}
	for ; i < len(x); i++ {
		a += x[i] * y[i]
	}
	return a + b + c + d
}

// orthonormalise makes columns of a length orthonormal, by the modified Gram-Schmidt method in float64. A column of
// which those before it leave no more than float32's rounding, as of one of zeros, is replaced by a random one: it
// would stay so for ever, and what is left of it would not be orthogonal. There must be no more columns than rows. NaNs
// spread.
func orthonormalise(columns []float32, length int, random *rand.Rand) {
	basis := make([]float64, len(columns))
	for i, x := range columns {
		basis[i] = float64(x)
	}
	for at := 0; at < len(basis); at += length {
		for v := basis[at : at+length]; !orthogonal(v, basis[:at]); {
			for i := range v {
				v[i] = random.NormFloat64()
			}
		}
	}
	for i, x := range basis {
		columns[i] = float32(x)
	}
}

// orthogonal makes v orthogonal to the columns of a basis, and of norm 1. It returns false if nothing is left of v.
func orthogonal(v, basis []float64) bool {
	if !normalise(v, 0) {
		return false
	}
	for at := 0; at < len(basis); at += len(v) {
		b := basis[at : at+len(v)]
		floats.AddScaled(v, -dot(v, b), b)
	}
	return normalise(v, 1e-6)
}

// normalise makes v's norm 1, unless it is least or below.
func normalise(v []float64, least float64) bool {
	norm := math.Sqrt(dot(v, v))
	if norm <= least {
		return false
	}
	floats.Scale(1/norm, v)
	return true
}
