package online

// OneLoop computes attention with one loop over the keys. No scores or weights are written to main memory. It extends
// the recurrence of [State.Add] by the output of the keys so far, oᵢ = Σⱼ≤ᵢ e^(xⱼ−mᵢ)/dᵢ·vⱼ:
//
//	oᵢ = oᵢ₋₁·(dᵢ₋₁/dᵢ)·e^(mᵢ₋₁−mᵢ) + e^(xᵢ−mᵢ)/dᵢ·vᵢ
//
// The first factor rescales oᵢ₋₁ from dᵢ₋₁ and mᵢ₋₁ to dᵢ and mᵢ. Every oᵢ is the attention over the keys so far; the
// last one is the result.
//
// Each query loads all the keys and values that it sees. (Rabe & Staats 2021, "Self-attention Does Not Need O(n²)
// Memory", arXiv 2112.05682, §2 and §3, has the loop in the form of [DivideOnce].) It returns an error for wrong sizes.
func OneLoop[F Float](h Head[F]) (Forward[F], error) {
	return queryByQuery(h, func(s State[F], o []F, x F, v []F) State[F] {
		next := s.Add(x)
		keep := divide(s.D, next.D) * weight(s.M, next.M)
		scale(o, keep)
		addTo(o, next.share(x), v)
		return next
	}, func(s State[F], o []F) {})
}

// DivideOnce is [OneLoop] with a single division: it accumulates oᵢ = Σⱼ≤ᵢ e^(xⱼ−mᵢ)·vⱼ, and divides by d after the
// last key (Dao 2023, "FlashAttention-2", arXiv 2307.08691, §3.1.1):
//
//	oᵢ = oᵢ₋₁·e^(mᵢ₋₁−mᵢ) + e^(xᵢ−mᵢ)·vᵢ
//
// It returns an error for wrong sizes.
func DivideOnce[F Float](h Head[F]) (Forward[F], error) {
	return queryByQuery(h, func(s State[F], o []F, x F, v []F) State[F] {
		return fold(s, o, []F{x}, v)
	}, normalize)
}

// queryByQuery loops over the keys of each query. step is the recurrence, which updates o; finish turns the last o into
// the output.
func queryByQuery[F Float](h Head[F], step func(s State[F], o []F, x F, v []F) State[F],
	finish func(s State[F], o []F)) (Forward[F], error) {
	p, err := begin(h)
	if err != nil {
		return Forward[F]{}, err
	}
	q, o := inFast[F](&p.memory, 1, h.D), inFast[F](&p.memory, 1, h.E)
	k, v := inFast[F](&p.memory, 1, h.D), inFast[F](&p.memory, 1, h.E)
	for i := range p.queries {
		q.load(p.q, i, i+1)
		o.fill(1, 0)
		s := Empty[F]()
		for j := range p.seen(i) {
			k.load(p.k, j, j+1)
			v.load(p.v, j, j+1)
			s = step(s, o.row(0), p.score(i, j, q.row(0), k.row(0)), v.row(0))
		}
		finish(s, o.row(0))
		o.store(p.out, i)
		p.lse.set(i, s.LogSumExp())
	}
	return p.forward(), nil
}

func (p *pass[F]) forward() Forward[F] {
	return Forward[F]{Out: p.out.data, LSE: p.lse.data, Traffic: p.traffic}
}

// fold adds a block of scores x with their values v, of len(o) elements each, to (m, d, o): the recurrence of
// [DivideOnce] for several keys at once.
func fold[F Float](s State[F], o, x, v []F) State[F] {
	next := s
	for j := range x {
		next.M = max(next.M, x[j])
	}
	keep := weight(s.M, next.M)
	next.D *= keep
	scale(o, keep)
	for j := range x {
		w := weight(x[j], next.M)
		next.D += w
		addTo(o, w, v[j*len(o):])
	}
	return next
}

// normalize divides Σe^(xⱼ−m)·vⱼ by d.
func normalize[F Float](s State[F], o []F) {
	for c := range o {
		o[c] = divide(o[c], s.D)
	}
}
