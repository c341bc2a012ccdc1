package online

import "fmt"

// Gradients are the gradients of a head's queries, keys and values, with their sizes.
type Gradients[F Float] struct {
	DQ, DK, DV []F
	Traffic    Traffic
}

// ThreeStepGradients is the backward pass of [ThreeStep], given the output gradient dOut. It uses the saved weights P
// and has five kernels (Dao et al. 2022, algorithm 3):
//
//	dV = Pᵀ·dO
//	dP = dO·Vᵀ
//	dS = P∘(dP − rowsum(P∘dP))
//	dQ = scale·dS·K
//	dK = scale·dSᵀ·Q
//
// P, dP and dS are written to main memory and read back: 7TS elements. It returns an error for wrong sizes.
func ThreeStepGradients[F Float](h Head[F], f Forward[F], dOut []F) (Gradients[F], error) {
	p, err := beginBackward(h, dOut)
	if err != nil {
		return Gradients[F]{}, err
	}
	if len(f.P) != p.queries*p.keys {
		return Gradients[F]{}, fmt.Errorf("online: %d weights for %d queries and %d keys: give the result of "+
			"ThreeStep for this head", len(f.P), p.queries, p.keys)
	}
	w := inMain(&p.memory, f.P, p.queries, p.keys)
	dw, ds := room[F](&p.memory, p.queries, p.keys), room[F](&p.memory, p.queries, p.keys)
	matmul(p.dv, w, p.do, transposedTimes)
	matmul(dw, p.do, p.v, timesTransposed)
	p.nextKernel()
	x, dx := inFast[F](&p.memory, 1, p.keys), inFast[F](&p.memory, 1, p.keys)
	for i := range p.queries {
		x.load(w, i, i+1)
		dx.load(dw, i, i+1)
		p.softmaxGradient(dx.row(0), x.row(0), dot(x.row(0), dx.row(0)))
		dx.store(ds, i)
	}
	matmul(p.dq, ds, p.k, times)
	matmul(p.dk, ds, p.q, transposedTimes)
	return p.gradients(), nil
}

// backward is a head in main memory with its gradients.
type backward[F Float] struct {
	*pass[F]
	do, dq, dk, dv matrix[F]
}

func beginBackward[F Float](h Head[F], dOut []F) (backward[F], error) {
	p, err := begin(h)
	if err != nil {
		return backward[F]{}, err
	}
	if len(dOut) != len(p.out.data) {
		return backward[F]{}, fmt.Errorf("online: dOut has %d elements: give %d, as many as the output", len(dOut),
			len(p.out.data))
	}
	return backward[F]{
		pass: p,
		do:   inMain(&p.memory, dOut, p.queries, h.E), dq: room[F](&p.memory, p.queries, h.D),
		dk: room[F](&p.memory, p.keys, h.D), dv: room[F](&p.memory, p.keys, h.E),
	}, nil
}

// softmaxGradient turns a row's dP into scale·dS. sum is Σ P∘dP.
func (p backward[F]) softmaxGradient(dp, w []F, sum F) {
	for j := range dp {
		dp[j] = p.head.Scale * w[j] * (dp[j] - sum)
	}
}

func (p backward[F]) gradients() Gradients[F] {
	return Gradients[F]{p.dq.data, p.dk.data, p.dv.data, p.traffic}
}

// TiledGradients is the backward pass of the functions that save no weights, given the output gradient dOut. It
// recomputes the weights in tiles from the scores and the saved log-sum-exp: pᵢⱼ = e^(xᵢⱼ−LSEᵢ). P, dP and dS are only
// in fast memory. A first kernel computes rowsum(P∘dP) without the weights:
//
//	Δ = rowsum(dO∘O),    since Σⱼ pⱼ·(dO·vⱼ) = dO·Σⱼ pⱼ·vⱼ
//
// The second loads each tile of keys once, accumulates its dK and dV, and for it loads all queries that see it with
// their dQ so far (Dao et al. 2022, algorithm 4; Dao 2023, algorithm 2). It moves Θ(N²d²/M) elements, like the forward
// pass (theorem 5).
//
// f is the result of any function but [ThreeStep]. The error of a weight is up to about |LSE| roundings, because one
// number is saved instead of m and d. It returns an error for wrong sizes.
func TiledGradients[F Float](h Head[F], f Forward[F], dOut []F, t Tiles) (Gradients[F], error) {
	p, err := beginBackward(h, dOut)
	if err != nil {
		return Gradients[F]{}, err
	}
	if t, err = p.cut(t); err != nil {
		return Gradients[F]{}, err
	}
	if len(f.Out) != len(dOut) || len(f.LSE) != p.queries {
		return Gradients[F]{}, fmt.Errorf("online: %d outputs and %d log-sum-exps for %d queries and values of %d "+
			"elements: "+
			"give the result of a function other than ThreeStep for this head", len(f.Out), len(f.LSE), p.queries, h.E)
	}
	p.out.data, p.lse.data = f.Out, f.LSE
	delta := p.delta()

	p.nextKernel()
	rows := func(n, cols int) *tile[F] { return inFast[F](&p.memory, n, cols) }
	q, dq, do := rows(t.Queries, h.D), rows(t.Queries, h.D), rows(t.Queries, h.E)
	lse, sum := rows(t.Queries, 1), rows(t.Queries, 1)
	k, dk, v, dv := rows(t.Keys, h.D), rows(t.Keys, h.D), rows(t.Keys, h.E), rows(t.Keys, h.E)
	x, dx := rows(t.Queries, t.Keys), rows(t.Queries, t.Keys)

	for begin, end := range chunks(p.queries, t.Queries) {
		dq.fill(end-begin, 0)
		dq.store(p.dq, begin)
	}
	for firstKey, lastKey := range chunks(p.keys, t.Keys) {
		k.load(p.k, firstKey, lastKey)
		v.load(p.v, firstKey, lastKey)
		dk.fill(k.rows, 0)
		dv.fill(k.rows, 0)
		for begin, end := range chunks(p.queries, t.Queries) {
			if firstKey >= p.seen(end-1) {
				continue
			}
			q.load(p.q, begin, end)
			do.load(p.do, begin, end)
			dq.load(p.dq, begin, end)
			lse.load(p.lse, begin, end)
			sum.load(delta, begin, end)
			p.scores(x, q, k, begin, firstKey)
			for i := range x.rows {
				for j, score := range x.row(i) {
					x.row(i)[j] = weight(score, lse.row(i)[0])
				}
			}
			dx.cols = x.cols
			dx.fill(x.rows, 0)
			transposedTimes(dv, x, do)
			timesTransposed(dx, do, v)
			for i := range x.rows {
				p.softmaxGradient(dx.row(i), x.row(i), sum.row(i)[0])
			}
			times(dq, dx, k)
			transposedTimes(dk, dx, q)
			dq.store(p.dq, begin)
		}
		dk.store(p.dk, firstKey)
		dv.store(p.dv, firstKey)
	}
	return p.gradients(), nil
}

// delta computes rowsum(dO∘O), T elements, in its own kernel.
func (p backward[F]) delta() matrix[F] {
	delta := room[F](&p.memory, p.queries, 1)
	o, do := inFast[F](&p.memory, 1, p.out.cols), inFast[F](&p.memory, 1, p.out.cols)
	for i := range p.queries {
		o.load(p.out, i, i+1)
		do.load(p.do, i, i+1)
		delta.set(i, dot(do.row(0), o.row(0)))
	}
	return delta
}
