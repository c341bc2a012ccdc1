package online

import (
	"fmt"
	"math"
	"sort"
)

// KeysOuter computes attention in tiles with the outer loop over keys, as FlashAttention does (Dao et al. 2022, arXiv
// 2205.14135, algorithm 1). It loads each tile of keys and values once; for each tile it loads and stores the outputs
// and (m, d) of all queries. With tiles that fill a fast memory of M elements it moves Θ(N²d²/M) elements (theorem 2).
// It skips tiles of keys that no query of a tile sees.
//
// Algorithm 1 saves m and d for the backward pass. Here a last kernel computes LSE from them, which moves 3T more
// elements. It returns an error for wrong sizes.
func KeysOuter[F Float](h Head[F], t Tiles) (Forward[F], error) {
	p, err := begin(h)
	if err != nil {
		return Forward[F]{}, err
	}
	if t, err = p.cut(t); err != nil {
		return Forward[F]{}, err
	}
	states := room[F](&p.memory, p.queries, 2) // (m, d) of each query
	b := newBlocks(p, t)
	for begin, end := range chunks(p.queries, t.Queries) {
		b.clear(end - begin)
		b.o.store(p.out, begin)
		b.md.store(states, begin)
	}
	for firstKey, lastKey := range chunks(p.keys, t.Keys) {
		b.k.load(p.k, firstKey, lastKey)
		b.v.load(p.v, firstKey, lastKey)
		for begin, end := range chunks(p.queries, t.Queries) {
			if firstKey >= p.seen(end-1) {
				continue
			}
			b.q.load(p.q, begin, end)
			b.o.load(p.out, begin, end)
			b.md.load(states, begin, end)
			p.scores(b.x, b.q, b.k, begin, firstKey)
			for i := range b.q.rows {
				scale(b.o.row(i), b.state(i).D) // undo the division before the last store
				b.setState(i, fold(b.state(i), b.o.row(i), b.x.row(i), b.v.data))
				normalize(b.state(i), b.o.row(i))
			}
			b.o.store(p.out, begin)
			b.md.store(states, begin)
		}
	}
	p.nextKernel()
	for i := range p.queries {
		p.lse.set(i, State[F]{states.get(2 * i), states.get(2*i + 1)}.LogSumExp())
	}
	return p.forward(), nil
}

// QueriesOuter computes attention in tiles with the outer loop over queries, as FlashAttention-2 does (Dao 2023, arXiv
// 2307.08691, algorithm 1). It loads each tile of queries once, and all keys and values for each tile. (m, d, o) are in
// fast memory; the output is divided by d and stored once. It skips tiles of keys that no query of a tile sees. It
// returns an error for wrong sizes.
func QueriesOuter[F Float](h Head[F], t Tiles) (Forward[F], error) {
	p, err := begin(h)
	if err != nil {
		return Forward[F]{}, err
	}
	if t, err = p.cut(t); err != nil {
		return Forward[F]{}, err
	}
	b := newBlocks(p, t)
	for begin, end := range chunks(p.queries, t.Queries) {
		b.q.load(p.q, begin, end)
		b.clear(end - begin)
		for firstKey, lastKey := range chunks(p.seen(end-1), t.Keys) {
			b.k.load(p.k, firstKey, lastKey)
			b.v.load(p.v, firstKey, lastKey)
			p.scores(b.x, b.q, b.k, begin, firstKey)
			for i := range b.q.rows {
				b.setState(i, fold(b.state(i), b.o.row(i), b.x.row(i), b.v.data))
			}
		}
		for i := range b.q.rows {
			normalize(b.state(i), b.o.row(i))
			p.lse.set(begin+i, b.state(i).LogSumExp())
		}
		b.o.store(p.out, begin)
	}
	return p.forward(), nil
}

// blocks is the fast memory of a forward pass in tiles.
type blocks[F Float] struct{ q, k, v, x, o, md *tile[F] }

func newBlocks[F Float](p *pass[F], t Tiles) blocks[F] {
	d, e := p.head.D, p.head.E
	return blocks[F]{
		q: inFast[F](&p.memory, t.Queries, d), k: inFast[F](&p.memory, t.Keys, d), v: inFast[F](&p.memory, t.Keys, e),
		x: inFast[F](&p.memory, t.Queries, t.Keys), // scores
		o: inFast[F](&p.memory, t.Queries, e), md: inFast[F](&p.memory, t.Queries, 2),
	}
}

func (b blocks[F]) state(i int) State[F] { return State[F]{b.md.row(i)[0], b.md.row(i)[1]} }

func (b blocks[F]) setState(i int, s State[F]) { b.md.row(i)[0], b.md.row(i)[1] = s.M, s.D }

// clear starts the outputs and statistics of a tile of queries.
func (b blocks[F]) clear(rows int) {
	b.o.fill(rows, 0)
	b.md.fill(rows, 0)
	for i := range rows {
		b.setState(i, Empty[F]())
	}
}

// Tiles is the number of queries and keys in fast memory at a time, at least 1 of each.
type Tiles struct{ Queries, Keys int }

// TilesKeysOuter returns the tiles with the most keys for [KeysOuter] that fit in a fast memory of the given number of
// elements. d and e are the elements of a key and of a value. The tiles have at most d queries, so that the scores are
// no larger than the keys. FlashAttention's algorithm 1, line 1, has M/4d keys, which with the scores is a little more
// than M. It returns an error if not even one query and one key fit.
func TilesKeysOuter(fast, d, e int) (Tiles, error) {
	return most(fast, d, e, func(n int) Tiles { return Tiles{Queries: min(n, d), Keys: n} }, forwardSize)
}

// TilesQueriesOuter returns the tiles with the most queries, and at most d keys, for [QueriesOuter].
func TilesQueriesOuter(fast, d, e int) (Tiles, error) {
	return most(fast, d, e, func(n int) Tiles { return Tiles{Queries: n, Keys: min(n, d)} }, forwardSize)
}

// TilesBackward returns the tiles with the most keys, and at most d queries, for [TiledGradients].
func TilesBackward(fast, d, e int) (Tiles, error) {
	return most(fast, d, e, func(n int) Tiles { return Tiles{Queries: min(n, d), Keys: n} }, backwardSize)
}

// forwardSize is the fast memory for q, o, m and d; k and v; scores.
func forwardSize(t Tiles, d, e int) int {
	return t.Queries*(d+e+2) + t.Keys*(d+e) + t.Queries*t.Keys
}

// backwardSize is the fast memory for q, dq, do, LSE and Δ; k, dk, v and dv; weights and their gradients.
func backwardSize(t Tiles, d, e int) int {
	return t.Queries*(2*d+e+2) + t.Keys*2*(d+e) + 2*t.Queries*t.Keys
}

// most returns tiles(n) for the largest n that fits.
func most(fast, d, e int, tiles func(n int) Tiles, size func(t Tiles, d, e int) int) (Tiles, error) {
	fast = min(fast, math.MaxInt/8) // so that no size overflows
	if d < 1 || e < 1 || d > fast || e > fast {
		return Tiles{}, fmt.Errorf("online: fast is %d elements, d %d and e %d: d and e must be at least 1 and at "+
			"most fast", fast, d, e)
	}
	n := sort.Search(fast/(d+e), func(n int) bool { return size(tiles(n+1), d, e) > fast })
	if n == 0 {
		return Tiles{}, fmt.Errorf("online: a fast memory of %d elements is too small for one query and one key: "+
			"give at least %d", fast, size(tiles(1), d, e))
	}
	return tiles(n), nil
}

// cut limits tiles to the size of the head.
func (p *pass[F]) cut(t Tiles) (Tiles, error) {
	if t.Queries < 1 || t.Keys < 1 {
		return t, fmt.Errorf("online: tiles of %d queries and %d keys: give at least 1 of each", t.Queries, t.Keys)
	}
	return Tiles{min(t.Queries, p.queries), min(t.Keys, p.keys)}, nil
}
