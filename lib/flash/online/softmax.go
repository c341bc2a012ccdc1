package online

// The passes and accesses per element are those of Milakov & Gimelshein 2018, "Online normalizer calculation for
// softmax" (arXiv 1805.02867), §2 and §3: naive 3, safe 4, online 3.

// Unsafe is softmax as it is written, eˣⁱ/Σeˣʲ (algorithm 1 of Milakov & Gimelshein). It loads each element twice and
// stores it once. In float32 eˣ overflows from x = 88.8 on, in float64 from 709.8 on, and ∞/∞ is NaN.
func Unsafe[F Float](x []F) ([]F, Traffic) {
	var m memory
	in, out := inMain(&m, x, len(x), 1), room[F](&m, len(x), 1)
	var d F
	for i := range x {
		d += exp(in.get(i))
	}
	for i := range x {
		out.set(i, exp(in.get(i))/d)
	}
	return out.data, m.traffic
}

// ThreePass is softmax after the maximum is taken off (algorithm 2): e^(xᵢ−m)/Σe^(xⱼ−m), the same number, but no
// exponent is above 0, and the sum is at least 1. It loads each element three times and stores it once.
func ThreePass[F Float](x []F) ([]F, Traffic) {
	var m memory
	in, out := inMain(&m, x, len(x), 1), room[F](&m, len(x), 1)
	s := Empty[F]()
	for i := range x {
		s.M = max(s.M, in.get(i))
	}
	for i := range x {
		s.D += weight(in.get(i), s.M)
	}
	for i := range x {
		out.set(i, s.share(in.get(i)))
	}
	return out.data, m.traffic
}

// Online is softmax in two passes (algorithm 3): one for maximum and sum together, by [State.Add], and one for the
// results. It loads each element twice and stores it once, as [Unsafe] does, and is as safe as [ThreePass].
func Online[F Float](x []F) ([]F, Traffic) {
	var m memory
	in, out := inMain(&m, x, len(x), 1), room[F](&m, len(x), 1)
	s := Empty[F]()
	for i := range x {
		s = s.Add(in.get(i))
	}
	for i := range x {
		out.set(i, s.share(in.get(i)))
	}
	return out.data, m.traffic
}

// Resident is softmax of what fits in fast memory: each element is loaded once and stored once, however many passes are
// made there. The recurrence has no part in that; it is needed where a row does not fit, or comes in pieces.
func Resident[F Float](x []F) ([]F, Traffic) {
	var m memory
	in, out := inMain(&m, x, 1, len(x)), room[F](&m, 1, len(x))
	t := inFast[F](&m, 1, len(x))
	t.load(in, 0, 1)
	softmax(t.row(0))
	t.store(out, 0)
	return out.data, m.traffic
}

// softmax replaces a row in fast memory.
func softmax[F Float](row []F) {
	s := fold(Empty[F](), nil, row, nil)
	for i, x := range row {
		row[i] = s.share(x)
	}
}
