package online

import "fmt"

// Gradients are those of Σ dOut·Out with respect to a head's queries, keys and values, each of the size of these.
type Gradients[F Float] struct {
	DQ, DK, DV []F
	Traffic    Traffic
}

// ThreeStepGradients is the backward pass of [ThreeStep], from the weights P that it kept, as five kernels (Dao et al.
// 2022, algorithm 3):
//
//	dV = Pᵀ·dO
//	dP = dO·Vᵀ
//	dS = P∘(dP − rowsum(P∘dP))
//	dQ = scale·dS·K
//	dK = scale·dSᵀ·Q
//
// P, dP and dS go to main memory and back: 7TS elements. The rest moves as little as it can, as in ThreeStep. Sizes
// that do not fit are an error.
func ThreeStepGradients[F Float](h Head[F], f Forward[F], dOut []F) (Gradients[F], error) {
	p, err := beginBackward(h, dOut)
	if err != nil {
		return Gradients[F]{}, err
	}
	if len(f.P) != p.queries*p.keys {
		return Gradients[F]{}, fmt.Errorf("online: %d weights of %d queries and %d keys: give what "+
			"ThreeStep made of this head",
			len(f.P), p.queries, p.keys)
	}
	w := inMain(&p.memory, f.P, p.queries, p.keys)
	dw, ds := room[F](&p.memory, p.queries, p.keys), room[F](&p.memory, p.queries, p.keys)
	product(p.dv, w, p.do, transposedTimes)
	product(dw, p.do, p.v, timesTransposed)
	p.nextKernel()
	x, dx := inFast[F](&p.memory, 1, p.keys), inFast[F](&p.memory, 1, p.keys)
	for i := range p.queries {
		x.load(w, i, i+1)
		dx.load(dw, i, i+1)
		p.softmaxGradient(dx.row(0), x.row(0), dot(x.row(0), dx.row(0)))
		dx.store(ds, i)
	}
	product(p.dq, ds, p.k, times)
	product(p.dk, ds, p.q, transposedTimes)
	return p.gradients(), nil
}

// backward is a head in main memory for its backward pass.
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
		return backward[F]{}, fmt.Errorf("online: %d gradients of %d results: give one for each", len(dOut), len(p.out.data))
	}
	return backward[F]{
		pass: p,
		do:   inMain(&p.memory, dOut, p.queries, h.E), dq: room[F](&p.memory, p.queries, h.D),
		dk: room[F](&p.memory, p.keys, h.D), dv: room[F](&p.memory, p.keys, h.E),
	}, nil
}

// softmaxGradient makes of a row's dP its dS, with the scale that dQ and dK have both; sum is Σ P∘dP.
func (p backward[F]) softmaxGradient(dp, w []F, sum F) {
	for j := range dp {
		dp[j] = p.head.Scale * w[j] * (dp[j] - sum)
	}
}

func (p backward[F]) gradients() Gradients[F] {
	return Gradients[F]{p.dq.data, p.dk.data, p.dv.data, p.traffic}
}
