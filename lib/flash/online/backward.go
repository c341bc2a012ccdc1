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
