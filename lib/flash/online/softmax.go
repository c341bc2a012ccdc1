package online

// The algorithms and their accesses per element are those of Milakov & Gimelshein 2018, "Online normalizer calculation
// for softmax" (arXiv 1805.02867), §2 and §3: naive 3, safe 4, online 3.

// Unsafe computes softmax by its definition, eˣⁱ/Σeˣʲ (algorithm 1). It loads each element twice and stores it once. eˣ
// overflows for x > 88.7 in float32 and x > 709.7 in float64, and ∞/∞ is NaN.
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

// ThreePass computes softmax after subtracting the maximum (algorithm 2): e^(xᵢ−m)/Σe^(xⱼ−m). No exponent is above 0,
// so nothing overflows, and the sum is at least 1. It loads each element three times and stores it once.
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

// Online computes softmax in two passes (algorithm 3): one for the maximum and the sum together, by [State.Add], and
// one for the results. It loads each element twice and stores it once, like [Unsafe], and is as safe as [ThreePass].
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

// Resident computes softmax of a row that fits in fast memory: it loads each element once and stores it once, with any
// number of passes. The recurrence of [Online] is needed only for rows that do not fit, or that arrive in blocks.
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
