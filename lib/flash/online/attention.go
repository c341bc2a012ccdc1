package online

// OneLoop is attention with one loop over the keys: no scores and no weights go to main memory. Its recurrence is that
// of [State.Add] with one line more, for the result oᵢ = Σⱼ≤ᵢ e^(xⱼ−mᵢ)/dᵢ·vⱼ of the keys so far:
//
//	oᵢ = oᵢ₋₁·(dᵢ₋₁/dᵢ)·e^(mᵢ₋₁−mᵢ) + e^(xᵢ−mᵢ)/dᵢ·vᵢ
//
// where the first factor takes the terms of oᵢ₋₁, made with dᵢ₋₁ and mᵢ₋₁, to dᵢ and mᵢ. The last o is the result: each
// one before is the attention over the keys so far.
//
// Queries are taken one by one, and each loads all the keys and values that it sees. (Rabe & Staats 2021,
// "Self-attention Does Not Need O(n²) Memory", arXiv 2112.05682, §2 and §3, has the loop in the form of [DivideOnce].)
// Sizes that do not fit are an error.
func OneLoop[F Float](h Head[F]) (Forward[F], error) {
	return queryByQuery(h, func(s State[F], o []F, x F, v []F) State[F] {
		next := s.Add(x)
		keep := divide(s.D, next.D) * weight(s.M, next.M)
		scale(o, keep)
		addTo(o, next.share(x), v)
		return next
	}, func(s State[F], o []F) {})
}

// DivideOnce is [OneLoop] without its divisions: it sums oᵢ = Σⱼ≤ᵢ e^(xⱼ−mᵢ)·vⱼ, and divides by d after the last key
// (Dao 2023, "FlashAttention-2", arXiv 2307.08691, §3.1.1):
//
//	oᵢ = oᵢ₋₁·e^(mᵢ₋₁−mᵢ) + e^(xᵢ−mᵢ)·vᵢ
//
// Sizes that do not fit are an error.
func DivideOnce[F Float](h Head[F]) (Forward[F], error) {
	return queryByQuery(h, func(s State[F], o []F, x F, v []F) State[F] {
		return fold(s, o, []F{x}, v)
	}, normalize)
}

// queryByQuery takes the keys one by one for each query: step is the recurrence, changing o, and finish makes of the
// last o the result.
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

// fold takes a block of scores x and their values v, of len(o) elements each, into (m, d, o): the recurrence of
// [DivideOnce] for many keys at once.
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

// normalize makes of Σe^(xⱼ−m)·vⱼ the result.
func normalize[F Float](s State[F], o []F) {
	for c := range o {
		o[c] = divide(o[c], s.D)
	}
}
