package systest

import (
	"fmt"
	"testing"
)

// Pairwise returns all cases in the full tier. In the quick one it returns enough that every two values of two factors
// that meet in some case meet in one that is returned (a covering array of strength 2), and notes the rest as left out.
// Most faults of options that are combined show with two of them (Kuhn, Wallace and Gallo, IEEE Transactions on
// Software Engineering 30(6), 2004).
func Pairwise[T any](t testing.TB, cases []T, factors func(T) []any) []T {
	t.Helper()
	if Full() {
		return cases
	}
	some := pairwise(cases, factors)
	if n := len(cases) - len(some); n > 0 {
		LeftOut(t, fmt.Sprintf("%d of %d cases, all of whose pairs of options occur in the others", n, len(cases)))
	}
	return some
}

// pair is two factors of a case, and their values.
type pair struct {
	i, j int
	a, b any
}

func pairsOf(factors []any) (all []pair) {
	for j := range factors {
		for i := range j {
			all = append(all, pair{i, j, factors[i], factors[j]})
		}
	}
	return all
}

// pairwise takes the first case with the most missing pairs, until no pair is missing.
func pairwise[T any](cases []T, factors func(T) []any) (some []T) {
	missing := map[pair]bool{}
	pairs := make([][]pair, len(cases))
	for i, c := range cases {
		pairs[i] = pairsOf(factors(c))
		for _, p := range pairs[i] {
			missing[p] = true
		}
	}
	taken := make([]bool, len(cases))
	for len(missing) > 0 {
		best, most := 0, 0
		for i := range cases {
			n := 0
			for _, p := range pairs[i] {
				if missing[p] {
					n++
				}
			}
			if n > most {
				best, most = i, n
			}
		}
		taken[best] = true
		for _, p := range pairs[best] {
			delete(missing, p)
		}
	}
	for i, c := range cases {
		if taken[i] {
			some = append(some, c)
		}
	}
	return some
}
