package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
)

func read(t *testing.T, text string) source {
	t.Helper()
	folder := t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(folder, "main.go"), []byte("package main\n"+text), 0o644))
	return readSource(folder)
}

func TestChanged(t *testing.T) {
	const before = `
const a, b = 1, 2
var c = a + 1
var unused = 5
type box[T any] struct{ x T }
func (b *box[T]) get() T { return b.x } // says nothing
func f() int { return c + new(box[int]).get() }
func main() { f() }`
	made := read(t, before).used()
	for _, test := range []struct{ now, want string }{
		{before, ""},
		{before + "\nfunc other() {}", ""},
		{`const a, b = 1, 2
var c = a + 1
var unused = 6
type box[T any] struct {
	x T
}
func (b *box[T]) get() T { return b.x }
// a comment
func f() int { return c + new(box[int]).get() }
func main() { println("another cell") }`, ""},
		{`const a, b = 1, 3
var c = a + 2
type box[T any] struct{ x T }
func (b *box[T]) get() T { return b.x }
func f() int { return c + new(box[int]).get() }
func main() {}`, "a c"},
		{`const a, b = 1, 2
var c = a + 1
type box[T any] struct{ x T }
func (b *box[T]) get() T { panic(b.x) }
func main() {}`, "box f"},
	} {
		got := made.changed(read(t, test.now))
		want := strings.Fields(test.want)
		if !slices.Equal(got, want) {
			t.Errorf("%v have changed, want %v, in\n%s", got, want, test.now)
		}
	}
	const constants = "\nconst (\n\ta = iota\n\tb\n)\nconst (\n\tc = 1\n\td = 2\n)\nfunc main() { println(b, d) }"
	counted := read(t, constants).used()
	for _, test := range []struct{ was, is, want string }{{"\tb\n", "\tz\n\tb\n", "[b]"}, {"\tc = 1\n", "", "[]"}} {
		got := counted.changed(read(t, strings.Replace(constants, test.was, test.is, 1)))
		if fmt.Sprint(got) != test.want {
			t.Errorf("%q instead of %q: %v have changed, want %s", test.is, test.was, got, test.want)
		}
	}
	if names := made.changed(readSource(t.TempDir())); len(names) != len(made) {
		t.Errorf("without a program only %v have changed", names)
	}
}
