package online

import "fmt"

// Partial is attention of one query over some of the keys, not yet divided: with m and d of [State], O = Σe^(xⱼ−m)·vⱼ.
// Partials of any cut of the keys merge, in any order and tree, to that of all of them: so keys can be shared out over
// blocks, processors or devices.
type Partial[F Float] struct {
	State State[F]
	O     []F
}

// Attend is the partial result for the scores x and a value of e elements for each, in v, row after row. Without scores
// it is the empty partial, which changes nothing it is merged with. Sizes that do not fit are an error.
func Attend[F Float](x, v []F, e int) (Partial[F], error) {
	if e < 1 || len(v)%e != 0 || len(v)/e != len(x) {
		return Partial[F]{}, fmt.Errorf("online: %d scores and %d elements of values of %d: give one value for each score",
			len(x), len(v), e)
	}
	o := make([]F, e)
	return Partial[F]{fold(Empty[F](), o, x, v), o}, nil
}

// Merge is the partial result over the keys of p and q together:
//
//	o = oₚ·e^(mₚ−m) + o_q·e^(m_q−m)
//
// with m and d as [State.Merge] has them. It is commutative, and associative but for rounding. Values of different
// lengths are an error.
func (p Partial[F]) Merge(q Partial[F]) (Partial[F], error) {
	if len(p.O) != len(q.O) {
		return Partial[F]{}, fmt.Errorf("online: partial results of %d and %d elements: only those of one head merge",
			len(p.O), len(q.O))
	}
	s, o := p.State.Merge(q.State), make([]F, len(p.O))
	keep, take := weight(p.State.M, s.M), weight(q.State.M, s.M)
	for c := range o {
		o[c] = F(p.O[c]*keep) + F(q.O[c]*take)
	}
	return Partial[F]{s, o}, nil
}

// Output is the attention over the keys seen, O/d; 0 if there are none.
func (p Partial[F]) Output() []F {
	o := append([]F(nil), p.O...)
	normalize(p.State, o)
	return o
}
