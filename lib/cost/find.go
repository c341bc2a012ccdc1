package cost

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// plain is a name as it is compared: case does not count, and spaces, hyphens and underscores are one.
func plain(name string) string {
	return strings.Join(strings.FieldsFunc(strings.ToLower(name),
		func(r rune) bool { return strings.ContainsRune(" -_", r) }), " ")
}

// find returns the item of that name, or an error that lists the nearest names.
func find[T any](kind, name string, items []T, nameOf func(T) string) (found T, err error) {
	want := plain(name)
	names := make([]string, len(items))
	for i, item := range items {
		if names[i] = nameOf(item); plain(names[i]) == want {
			return item, nil
		}
	}
	const most = 40 // no name is as long, and a distance takes time
	want = want[:min(len(want), most)]
	far := func(name string) int {
		if strings.Contains(plain(name), want) { // the name is only not complete
			return 0
		}
		return distance(want, plain(name))
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(far(a), far(b)) })
	return found, fmt.Errorf("cost: there is no %s %.60q: the nearest of %d are %q", kind, name, len(names),
		names[:min(4, len(names))])
}

// distance is the least number of bytes to insert, delete or replace that turns a into b (Levenshtein 1966).
func distance(a, b string) int {
	row := make([]int, len(b)+1) // the distances of a's bytes so far to each beginning of b
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
