// Package must is for tests: it ends them at errors that they do not expect.
package must

import (
	"strings"
	"testing"
)

// Do fails the test at once unless err is nil.
func Do(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Get returns the value of a call, as in must.Get(f())(t), and fails the test at once if there is an error.
func Get[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		Do(t, err)
		return v
	}
}

// Value is Get where there is no t: it panics.
func Value[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Refuse checks that there is an error and that it says each of the words; what names the case.
func Refuse(t testing.TB, what any, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("%+v: no error, want one with %q", what, words)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%+v: error %q, want one with %q", what, err, w)
		}
	}
}
