package online

// KeysOutside is attention in tiles, in FlashAttention's order (Dao et al. 2022, arXiv 2205.14135, algorithm 1): each
// tile of keys and values is loaded once, and for each of them all queries, with their results and (m, d) so far, which
// go to main memory and back each time. With tiles that fill a fast memory of M elements that is Θ(N²d²/M) elements
// (theorem 2). Tiles of keys that no query of a tile may see are passed over.
//
// Algorithm 1 leaves m and d for the backward pass; here a last kernel makes LSE of them, which moves 3T elements more.
// Sizes that do not fit are an error.
func KeysOutside[F Float](h Head[F], t Tiles) (Forward[F], error) {
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
				scale(b.o.row(i), b.state(i).D) // it was divided by that before it was stored
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

// QueriesOutside is attention in tiles, in FlashAttention-2's order (Dao 2023, arXiv 2307.08691, algorithm 1): each
// tile of queries is loaded once, and for each of them all keys and values; (m, d, o) stay in fast memory, are divided
// once, and stored once. With tiles of one query it is [DivideOnce] with the keys in blocks. Tiles of keys that no
// query of a tile may see are passed over. Sizes that do not fit are an error.
func QueriesOutside[F Float](h Head[F], t Tiles) (Forward[F], error) {
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

// clear makes the results those of so many queries that have seen nothing.
func (b blocks[F]) clear(rows int) {
	b.o.fill(rows, 0)
	b.md.fill(rows, 0)
	for i := range rows {
		b.setState(i, Empty[F]())
	}
}
