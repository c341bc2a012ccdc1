package online

import "fmt"

// Partial is attention of one query over a part of the keys, before the division by d: with m and d of [State],
// O = Σe^(xⱼ−m)·vⱼ. Partials merge in any order, so that keys can be split over blocks, processors or devices.
type Partial[F Float] struct {
	State State[F]
	O     []F
}

// Attend returns the partial result for the scores x and a value of e elements for each score, in v (row-major).
// Without scores it returns the neutral element of Merge. It returns an error for wrong sizes.
func Attend[F Float](x, v []F, e int) (Partial[F], error) {
	if e < 1 || len(v)%e != 0 || len(v)/e != len(x) {
		return Partial[F]{}, fmt.Errorf("online: %d scores, and v has %d elements: give a value of e=%d elements for "+
			"each score", len(x), len(v), e)
	}
	o := make([]F, e)
	return Partial[F]{fold(Empty[F](), o, x, v), o}, nil
}

// Merge returns the partial result over the keys of both p and q:
//
//	o = oₚ·e^(mₚ−m) + o_q·e^(m_q−m)
//
// with m and d of [State.Merge]. It is commutative, and associative except for rounding. It returns an error for values
// of different lengths.
func (p Partial[F]) Merge(q Partial[F]) (Partial[F], error) {
	if len(p.O) != len(q.O) {
		return Partial[F]{}, fmt.Errorf("online: cannot merge partial results of %d and %d elements: both must be of "+
			"one head", len(p.O), len(q.O))
	}
	s, o := p.State.Merge(q.State), make([]F, len(p.O))
	wp, wq := weight(p.State.M, s.M), weight(q.State.M, s.M)
	for c := range o {
		o[c] = F(p.O[c]*wp) + F(q.O[c]*wq)
	}
	return Partial[F]{s, o}, nil
}

// Output returns the attention over the keys so far, O/d, or 0 if there are none.
func (p Partial[F]) Output() []F {
	o := append([]F(nil), p.O...)
	normalize(p.State, o)
	return o
}
