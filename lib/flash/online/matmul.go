package online

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
