package online

import (
	"iter"
	"math"
)

// Float is the type of the numbers.
type Float interface{ ~float32 | ~float64 }

// Traffic counts the elements that move between main memory and the processor. Every access to main memory is counted.
type Traffic struct {
	Loads, Stores int64
	// Fast is the largest number of elements in fast memory (a GPU's shared memory) at once. Scalars are in registers
	// and do not count.
	Fast int64
}

// Moved returns loads plus stores.
func (t Traffic) Moved() int64 { return t.Loads + t.Stores }

// memory counts the traffic of one function, and the elements in fast memory.
type memory struct {
	traffic Traffic
	held    int64
}

// nextKernel empties the fast memory, as the start of a kernel does.
func (m *memory) nextKernel() { m.held = 0 }

// matrix is a row-major array in main memory.
type matrix[F Float] struct {
	data       []F
	rows, cols int
	memory     *memory
}

func inMain[F Float](m *memory, data []F, rows, cols int) matrix[F] {
	return matrix[F]{data, rows, cols, m}
}

// room allocates a matrix of zeros for results, which moves nothing.
func room[F Float](m *memory, rows, cols int) matrix[F] {
	return inMain(m, make([]F, rows*cols), rows, cols)
}

// get and set move one element to and from a register.
func (a matrix[F]) get(i int) F {
	a.memory.traffic.Loads++
	return a.data[i]
}

func (a matrix[F]) set(i int, x F) {
	a.memory.traffic.Stores++
	a.data[i] = x
}

// tile is a part of fast memory for rows of a matrix.
type tile[F Float] struct {
	data       []F
	rows, cols int
	memory     *memory
}

// inFast allocates a tile in fast memory, until the next kernel.
func inFast[F Float](m *memory, rows, cols int) *tile[F] {
	m.held += int64(rows) * int64(cols)
	m.traffic.Fast = max(m.traffic.Fast, m.held)
	return &tile[F]{make([]F, rows*cols), rows, cols, m}
}

// load sets the tile to rows of main memory.
func (t *tile[F]) load(from matrix[F], begin, end int) {
	t.rows = end - begin
	n := copy(t.data, from.data[begin*t.cols:end*t.cols])
	t.memory.traffic.Loads += int64(n)
}

// store copies the tile to main memory, from row begin on.
func (t *tile[F]) store(to matrix[F], begin int) {
	n := copy(to.data[begin*t.cols:], t.data[:t.rows*t.cols])
	t.memory.traffic.Stores += int64(n)
}

// fill sets the tile to a number of rows with all elements x, without traffic.
func (t *tile[F]) fill(rows int, x F) {
	t.rows = rows
	for i := range t.data[:rows*t.cols] {
		t.data[i] = x
	}
}

func (t *tile[F]) row(i int) []F { return t.data[i*t.cols : (i+1)*t.cols] }

// chunks yields the begin and end of each chunk of at most size of n.
func chunks(n, size int) iter.Seq2[int, int] {
	return func(yield func(begin, end int) bool) {
		for begin := 0; begin < n && yield(begin, min(begin+size, n)); begin += size {
		}
	}
}

func exp[F Float](x F) F { return F(math.Exp(float64(x))) }

func lowest[F Float]() F { return F(math.Inf(-1)) }

// matmul is a kernel: it loads a and b once, sets c with multiply, and stores it.
func matmul[F Float](c, a, b matrix[F], multiply func(c, a, b *tile[F])) {
	m := c.memory
	m.nextKernel()
	tile := func(x matrix[F]) *tile[F] { return inFast[F](m, x.rows, x.cols) }
	ta, tb, tc := tile(a), tile(b), tile(c)
	ta.load(a, 0, a.rows)
	tb.load(b, 0, b.rows)
	multiply(tc, ta, tb)
	tc.store(c, 0)
}

// times adds a·b to c.
func times[F Float](c, a, b *tile[F]) {
	for i := range a.rows {
		for j := range a.cols {
			addTo(c.row(i), a.row(i)[j], b.row(j))
		}
	}
}

// timesTransposed adds a·bᵀ to c.
func timesTransposed[F Float](c, a, b *tile[F]) {
	for i := range a.rows {
		for j := range b.rows {
			c.row(i)[j] += dot(a.row(i), b.row(j))
		}
	}
}

// transposedTimes adds aᵀ·b to c.
func transposedTimes[F Float](c, a, b *tile[F]) {
	for i := range a.rows {
		for j := range a.cols {
			addTo(c.row(j), a.row(i)[j], b.row(i))
		}
	}
}

func dot[F Float](a, b []F) (sum F) {
	for i := range a {
		sum += a[i] * b[i]
	}
	return sum
}

// addTo adds w·v to o.
func addTo[F Float](o []F, w F, v []F) {
	for c := range o {
		o[c] += w * v[c]
	}
}

func scale[F Float](o []F, by F) {
	for c := range o {
		o[c] *= by
	}
}
