package cost

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// plain normalizes a name for comparison: lower case, with a space for spaces, hyphens and underscores.
func plain(name string) string {
	return strings.Join(strings.FieldsFunc(strings.ToLower(name),
		func(r rune) bool { return strings.ContainsRune(" -_", r) }), " ")
}

// find returns the item with the name, or an error that lists the nearest names.
func find[T any](kind, name string, items []T, nameOf func(T) string) (found T, err error) {
	want := plain(name)
	names := make([]string, len(items))
	for i, item := range items {
		if names[i] = nameOf(item); plain(names[i]) == want {
			return item, nil
		}
	}
	want = want[:min(len(want), 40)] // longer than any name, to bound the time of distance
	far := func(name string) int {
		if strings.Contains(plain(name), want) { // an incomplete name
			return 0
		}
		return distance(want, plain(name))
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(far(a), far(b)) })
	return found, fmt.Errorf("cost: unknown %s %.60q: of %d, the nearest are %q", kind, name, len(names),
		names[:min(4, len(names))])
}

// distance is the edit distance of two strings in bytes (Levenshtein 1966).
func distance(a, b string) int {
	row := make([]int, len(b)+1) // the distances from a[:i] to b[:j]
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
