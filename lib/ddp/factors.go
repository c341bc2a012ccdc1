package ddp

import (
	"math"
	"math/rand/v2"

	"gonum.org/v1/gonum/blas/blas32"
	"gonum.org/v1/gonum/floats"
)

// factors are a bucket's messages for PowerSGD.
type factors struct {
	first, second []float32 // the first message: uncompressed gradients, then all P; the second: all Q
	plain         []span    // uncompressed gradients
	matrices      []*matrix
}

// span is a range of a bucket.
type span struct{ from, to int }

// matrix is a gradient M ≈ P·Qᵀ in row-major order, and its factors in column-major order.
type matrix struct {
	span
	rows, columns int
	p, q          []float32 // in the messages
	own           []float32 // Q of this rank's gradient alone
	last          []float32 // Q of the last step
}

func newFactors(g Gradients, rank int) *factors {
	f := &factors{}
	var first, second int
	for i, spec := range g.Params {
		at := span{g.Offsets[i], g.Offsets[i] + spec.Size()}
		if d := spec.Shape.Dimensions; len(d) > 1 {
			n, m := d[0], spec.Size()/d[0]
			if rank <= (n*m-1)/(n+m) { // rank·(n+m) < n·m without overflow
				f.matrices = append(f.matrices, &matrix{span: at, rows: n, columns: m,
					own: make([]float32, rank*m), last: make([]float32, rank*m)})
				first, second = first+rank*n, second+rank*m
				continue
			}
		}
		f.plain = append(f.plain, at)
		first += spec.Size()
	}
	f.first, f.second = make([]float32, first), make([]float32, second)
	p, q := f.first, f.second // handed out from the end
	for _, m := range f.matrices {
		m.p, p = p[len(p)-rank*m.rows:], p[:len(p)-rank*m.rows]
		m.q, q = q[len(q)-rank*m.columns:], q[:len(q)-rank*m.columns]
	}
	return f
}

// row returns row i of M in a bucket.
func (m *matrix) row(bucket []float32, i int) []float32 {
	return bucket[m.from+i*m.columns:][:m.columns]
}

// computeP computes P = M·Q with the last step's Q.
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

// multiply writes P·Qᵀ to sums, and subtracts from M in bucket the rank's own share of it.
func (m *matrix) multiply(sums, bucket []float32) {
	for i := range m.rows {
		row, residual := m.row(sums, i), m.row(bucket, i)
		clear(row)
		for j := 0; j*m.columns < len(m.q); j++ {
			p := m.p[j*m.rows+i]
			add(residual, -p, column(m.own, j, m.columns))
			add(row, p, column(m.q, j, m.columns))
		}
	}
}

func column(x []float32, j, length int) []float32 { return x[j*length:][:length] }

// add adds a·x to y.
func add(y []float32, a float32, x []float32) { blas32.Axpy(a, vector(x), vector(y)) }

func vector(x []float32) blas32.Vector { return blas32.Vector{N: len(x), Inc: 1, Data: x} }

// dot is the dot product. gonum's order of summation depends on memory addresses, so two runs would differ in bits.
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

// orthonormalise makes columns of a length orthonormal, by the modified Gram-Schmidt method in float64. A column that
// depends on those before it, up to float32's rounding, is replaced by a random one: zeros would stay zeros in every
// step, and rounding errors would not be orthogonal. There must be no more columns than rows. NaNs spread.
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

// orthogonal makes v orthogonal to the columns of a basis, and of norm 1. It returns false if v depends on them.
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

// normalise makes v's norm 1, unless it is at most least.
func normalise(v []float64, least float64) bool {
	norm := math.Sqrt(dot(v, v))
	if norm <= least {
		return false
	}
	floats.Scale(1/norm, v)
	return true
}
