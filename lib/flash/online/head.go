package online

import "fmt"

// Head is one head of attention: T queries and S keys of D elements, and S values of E elements, row-major.
type Head[F Float] struct {
	Q, K, V []F
	D, E    int
	Scale   F    // of the scores, usually 1/√D
	Causal  bool // a query sees the keys up to its own position; the last query has the position of the last key
}

// Forward is the result of a forward pass.
type Forward[F Float] struct {
	Out []F // the output, T×E
	// P and LSE are saved for the backward pass: by [ThreeStep] the softmax of the scores, P, T×S; by all others the
	// log-sum-exp of each query's scores, LSE, T.
	P, LSE  []F
	Traffic Traffic
}

// ThreeStep computes attention in three kernels: scores S = scale·Q·Kᵀ, weights P = softmax(S), output O = P·V. S and
// P, T×S, are written to main memory and read back: 4TS elements. The other matrices move once, if fast memory is large
// enough for that. In total this is Θ(Nd+N²) (Dao et al. 2022, "FlashAttention", arXiv 2205.14135, algorithm 0 and
// theorem 2). It returns an error for wrong sizes.
func ThreeStep[F Float](h Head[F]) (Forward[F], error) {
	p, err := begin(h)
	if err != nil {
		return Forward[F]{}, err
	}
	s, w := room[F](&p.memory, p.queries, p.keys), room[F](&p.memory, p.queries, p.keys)
	matmul(s, p.q, p.k, func(x, q, k *tile[F]) { p.scores(x, q, k, 0, 0) })
	p.nextKernel()
	x := inFast[F](&p.memory, 1, p.keys)
	for i := range p.queries {
		x.load(s, i, i+1)
		softmax(x.row(0))
		x.store(w, i)
	}
	matmul(p.out, w, p.v, times)
	return Forward[F]{Out: p.out.data, P: w.data, Traffic: p.traffic}, nil
}

// pass is a head in main memory.
type pass[F Float] struct {
	memory
	head              Head[F]
	queries, keys     int
	q, k, v, out, lse matrix[F]
}

// begin allocates a head and its results in main memory.
func begin[F Float](h Head[F]) (*pass[F], error) {
	switch {
	case h.D < 1 || h.E < 1:
		return nil, fmt.Errorf("online: D is %d and E is %d: give at least 1 for both", h.D, h.E)
	case len(h.Q)%h.D != 0 || len(h.K)%h.D != 0 || len(h.V)%h.E != 0:
		return nil, fmt.Errorf("online: Q has %d elements, K %d and V %d: give multiples of D=%d, D and E=%d",
			len(h.Q), len(h.K), len(h.V), h.D, h.E)
	case len(h.K)/h.D != len(h.V)/h.E:
		return nil, fmt.Errorf("online: %d keys and %d values: give one value for each key", len(h.K)/h.D, len(h.V)/h.E)
	}
	p := &pass[F]{head: h, queries: len(h.Q) / h.D, keys: len(h.K) / h.D}
	p.q, p.out = inMain(&p.memory, h.Q, p.queries, h.D), room[F](&p.memory, p.queries, h.E)
	p.k, p.v = inMain(&p.memory, h.K, p.keys, h.D), inMain(&p.memory, h.V, p.keys, h.E)
	p.lse = room[F](&p.memory, p.queries, 1)
	return p, nil
}

// seen returns the number of keys that a query sees.
func (p *pass[F]) seen(query int) int {
	if p.head.Causal {
		return max(0, p.keys-p.queries+query+1)
	}
	return p.keys
}

// score returns the score of query i and key j.
func (p *pass[F]) score(i, j int, q, k []F) F {
	if j >= p.seen(i) {
		return lowest[F]()
	}
	return p.head.Scale * dot(q, k)
}

// scores sets x to the scores of a tile of queries and a tile of keys, whose first rows are query and key.
func (p *pass[F]) scores(x, q, k *tile[F], query, key int) {
	x.rows, x.cols = q.rows, k.rows
	for i := range q.rows {
		for j := range k.rows {
			x.row(i)[j] = p.score(query+i, key+j, q.row(i), k.row(j))
		}
	}
}
