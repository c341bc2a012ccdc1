package online

import "fmt"

// Head is one head of attention: T queries and S keys of D elements, and S values of E, row after row.
type Head[F Float] struct {
	Q, K, V []F
	D, E    int
	// Scale is what the products of queries and keys are multiplied by, commonly 1/√D.
	Scale F
	// Causal lets each query see the keys up to its own place, where the last query is in the place of the last key.
	Causal bool
}

// Forward is what a forward pass makes.
type Forward[F Float] struct {
	// Out is the result, T×E.
	Out []F
	// P and LSE are what is kept for the backward pass. [ThreeStep] keeps the softmax of the scores, P, T×S; all others
	// keep for each query the log-sum-exp of its scores, LSE, T.
	P, LSE  []F
	Traffic Traffic
}

// ThreeStep is attention as three kernels: scores S = scale·Q·Kᵀ, weights P = softmax(S), result O = P·V. S and P, T×S,
// go to main memory and come back: 4TS elements. The rest moves but once, with as much fast memory as that takes: this
// is what Dao et al. 2022, "FlashAttention" (arXiv 2205.14135), algorithm 0 and theorem 2 count as Θ(Nd+N²). Sizes that
// do not fit are an error.
func ThreeStep[F Float](h Head[F]) (Forward[F], error) {
	p, err := begin(h)
	if err != nil {
		return Forward[F]{}, err
	}
	s, w := room[F](&p.memory, p.queries, p.keys), room[F](&p.memory, p.queries, p.keys)
	product(s, p.q, p.k, func(x, q, k *tile[F]) { p.scores(x, q, k, 0, 0) })
	p.nextKernel()
	x := inFast[F](&p.memory, 1, p.keys)
	for i := range p.queries {
		x.load(s, i, i+1)
		softmax(x.row(0))
		x.store(w, i)
	}
	product(p.out, w, p.v, times)
	return Forward[F]{Out: p.out.data, P: w.data, Traffic: p.traffic}, nil
}

// pass is a head in main memory.
type pass[F Float] struct {
	memory
	head              Head[F]
	queries, keys     int
	q, k, v, out, lse matrix[F]
}

// begin puts a head and room for its results into main memory.
func begin[F Float](h Head[F]) (*pass[F], error) {
	switch {
	case h.D < 1 || h.E < 1:
		return nil, fmt.Errorf("online: keys of %d elements and values of %d: both need at least 1", h.D, h.E)
	case len(h.Q)%h.D != 0 || len(h.K)%h.D != 0 || len(h.V)%h.E != 0:
		return nil, fmt.Errorf("online: %d and %d elements of queries and keys of %d, and %d of values of "+
			"%d: give whole rows",
			len(h.Q), len(h.K), h.D, len(h.V), h.E)
	case len(h.K)/h.D != len(h.V)/h.E:
		return nil, fmt.Errorf("online: %d keys and %d values: give one value for each key", len(h.K)/h.D, len(h.V)/h.E)
	}
	p := &pass[F]{head: h, queries: len(h.Q) / h.D, keys: len(h.K) / h.D}
	p.q, p.out = inMain(&p.memory, h.Q, p.queries, h.D), room[F](&p.memory, p.queries, h.E)
	p.k, p.v = inMain(&p.memory, h.K, p.keys, h.D), inMain(&p.memory, h.V, p.keys, h.E)
	p.lse = room[F](&p.memory, p.queries, 1)
	return p, nil
}

// seen is the number of keys, from the first on, that a query sees.
func (p *pass[F]) seen(query int) int {
	if p.head.Causal {
		return max(0, p.keys-p.queries+query+1)
	}
	return p.keys
}

// score is what query i makes of key j.
func (p *pass[F]) score(i, j int, q, k []F) F {
	if j >= p.seen(i) {
		return lowest[F]()
	}
	return p.head.Scale * dot(q, k)
}

// scores makes x the scores of some queries, the first of them number query, and some keys.
func (p *pass[F]) scores(x, q, k *tile[F], query, key int) {
	x.rows, x.cols = q.rows, k.rows
	for i := range q.rows {
		for j := range k.rows {
			x.row(i)[j] = p.score(query+i, key+j, q.row(i), k.row(j))
		}
	}
}
