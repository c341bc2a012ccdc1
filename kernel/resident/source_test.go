package main

import (
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
func main() {}`, "a b c"},
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
	if names := made.changed(readSource(t.TempDir())); len(names) != len(made) {
		t.Errorf("without a program only %v have changed", names)
	}
}
