package online

import (
	"iter"
	"math"
)

// Float is a type to compute in.
type Float interface{ ~float32 | ~float64 }

// Traffic is what moved between main memory and the processor, in elements. It is counted where the elements move:
// what lies in main memory cannot be had in another way.
type Traffic struct {
	Loads, Stores int64
	// Fast is the most elements that lay in the processor's fast memory (a GPU's shared memory) at once. Single numbers
	// are taken to lie in registers, and do not count.
	Fast int64
}

// Moved is all that moved: loads and stores.
func (t Traffic) Moved() int64 { return t.Loads + t.Stores }

// memory counts the traffic of one step, and what its fast memory holds.
type memory struct {
	traffic Traffic
	held    int64
}

// nextKernel empties the fast memory, as the start of another kernel does.
func (m *memory) nextKernel() { m.held = 0 }

// matrix is an array in main memory, row after row.
type matrix[F Float] struct {
	data       []F
	rows, cols int
	memory     *memory
}

func inMain[F Float](m *memory, data []F, rows, cols int) matrix[F] {
	return matrix[F]{data, rows, cols, m}
}

// room is a matrix of zeros, for results. (To make it moves nothing.)
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

// tile is a part of the fast memory that holds some rows of a matrix.
type tile[F Float] struct {
	data       []F
	rows, cols int
	memory     *memory
}

// inFast sets fast memory aside for a tile of at most so many rows, until the next kernel.
func inFast[F Float](m *memory, rows, cols int) *tile[F] {
	m.held += int64(rows) * int64(cols)
	m.traffic.Fast = max(m.traffic.Fast, m.held)
	return &tile[F]{make([]F, rows*cols), rows, cols, m}
}

// load moves rows from main memory into the tile, which has just these then.
func (t *tile[F]) load(from matrix[F], begin, end int) {
	t.rows = end - begin
	n := copy(t.data, from.data[begin*t.cols:end*t.cols])
	t.memory.traffic.Loads += int64(n)
}

// store moves the tile to rows of main memory from row begin on.
func (t *tile[F]) store(to matrix[F], begin int) {
	n := copy(to.data[begin*t.cols:], t.data[:t.rows*t.cols])
	t.memory.traffic.Stores += int64(n)
}

// fill makes the tile one of so many rows, all elements x, without main memory.
func (t *tile[F]) fill(rows int, x F) {
	t.rows = rows
	for i := range t.data[:rows*t.cols] {
		t.data[i] = x
	}
}

func (t *tile[F]) row(i int) []F { return t.data[i*t.cols : (i+1)*t.cols] }

// chunks yields the begin and end of each run of at most size of n.
func chunks(n, size int) iter.Seq2[int, int] {
	return func(yield func(begin, end int) bool) {
		for begin := 0; begin < n && yield(begin, min(begin+size, n)); begin += size {
		}
	}
}

func exp[F Float](x F) F { return F(math.Exp(float64(x))) }

func lowest[F Float]() F { return F(math.Inf(-1)) }
