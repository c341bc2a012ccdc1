package notebook_test

import (
	"fmt"
	"math"
	"math/big"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/notebook"
)

// inCell makes the process look like a cell of a kernel with the given temporary folder.
func inCell(t *testing.T, folder string) {
	t.Setenv("GONB_PIPE", "pipe")
	t.Setenv("GONB_TMP_DIR", folder)
}

// everywhere runs test as a notebook cell and as a plain program.
func everywhere(t *testing.T, test func(t *testing.T)) {
	t.Run("cell", func(t *testing.T) {
		inCell(t, t.TempDir())
		test(t)
	})
	t.Run("program", func(t *testing.T) {
		t.Setenv("GONB_PIPE", "")
		test(t)
	})
}

type point struct{ X, Y float64 }

type node struct{ Next *node }

type everything struct {
	Bool    bool
	Int8    int8
	Uint    uint
	Float32 float32
	Complex complex128
	Text    string
	Bytes   []byte
	Floats  [][]float32
	Flags   []bool
	Array   [3]int16
	Texts   map[string][]string
	Points  map[point]*point
	Time    time.Time
	Span    time.Duration
	Big     *big.Int
	Missing *point
	_       int
	Exported
}

// Exported is embedded: an embedded type is a field, so its name must be exported.
type Exported struct{ Z int }

func keep(t *testing.T, name string, value any) {
	t.Helper()
	must.Do(t, notebook.Keep(name, value))
}

func checkKept[T any](t *testing.T, name string, want T) {
	t.Helper()
	if got, err := notebook.Kept[T](name); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%q: got %#v, %v, want %#v", name, got, err, want)
	}
}

// roundTrip keeps a value and returns what is read back.
func roundTrip[T any](t *testing.T, name string, value T) T {
	t.Helper()
	keep(t, name, value)
	got, err := notebook.Kept[T](name)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return got
}

// checkRoundTrip keeps a value and compares what is read back.
func checkRoundTrip[T any](t *testing.T, name string, value T) {
	t.Helper()
	keep(t, name, value)
	checkKept(t, name, value)
}

func TestKeepRoundTrip(t *testing.T) {
	everywhere(t, func(t *testing.T) {
		checkRoundTrip(t, "int", -42)
		checkRoundTrip(t, "text", "naïve\x00\xff")
		checkRoundTrip(t, "slice", []float64{0, -0.5, math.Inf(1), math.MaxFloat64})
		checkRoundTrip(t, "empty map", map[string]int{})
		checkRoundTrip(t, "pointers", []*point{{1, 2}, {}, {3, 4}})
		checkRoundTrip(t, "everything", everything{
			Bool: true, Int8: -128, Uint: math.MaxUint, Float32: math.SmallestNonzeroFloat32, Complex: 1 + 2i,
			Text: "t", Bytes: []byte{0}, Floats: [][]float32{{0}, {1, 2}}, Flags: []bool{true, false},
			Array: [3]int16{1, -2, 3}, Texts: map[string][]string{"": {"x"}, "a": {"b", ""}},
			Points: map[point]*point{{1, 2}: {3, 4}, {}: {}},
			Time:   time.Date(2020, 2, 29, 1, 2, 3, 4, time.UTC), Span: time.Hour,
			Big: new(big.Int).Lsh(big.NewInt(1), 100), Exported: Exported{7},
		})
		checkRoundTrip(t, "zero everything", everything{})
	})
}

func TestKeepCopies(t *testing.T) {
	everywhere(t, func(t *testing.T) {
		value := []int{1, 2, 3}
		keep(t, "value", value)
		value[0] = 100
		first, _ := notebook.Kept[[]int]("value")
		first[1] = 200
		checkKept(t, "value", []int{1, 2, 3})
		checkRoundTrip(t, "value", "another type")
	})
}

func TestKeepNames(t *testing.T) {
	names := []string{
		"a/b", "../../a", ".", "..", "a", "A", "Ä", "日本", " ", "a b", "a\nb", "a\x00b", "\xff", "con", "-", "*", `\`,
		strings.Repeat("x", 100),
	}
	everywhere(t, func(t *testing.T) {
		for i, name := range names {
			keep(t, name, i)
		}
		for i, name := range names {
			checkKept(t, name, i)
		}
		for _, name := range []string{"", strings.Repeat("x", 101)} {
			if err := notebook.Keep(name, 1); err == nil {
				t.Errorf("Keep(%q): no error", name)
			}
			if _, err := notebook.Kept[int](name); err == nil || strings.Contains(err.Error(), "no value kept") {
				t.Errorf("Kept(%q): got %v", name, err)
			}
		}
	})
}

// Everything of a cell stays in its kernel's folder, in a sub-folder that the go tool ignores.
func TestKeepStaysInFolder(t *testing.T) {
	parent := t.TempDir()
	inCell(t, filepath.Join(parent, "kernel"))
	for _, name := range []string{"../up", "/absolute", "plain"} {
		keep(t, name, 1)
	}
	for folder, want := range map[string]string{parent: "kernel", filepath.Join(parent, "kernel"): ".kept"} {
		entries, err := os.ReadDir(folder)
		if err != nil || len(entries) != 1 || entries[0].Name() != want {
			t.Errorf("%s holds %v (%v), want %s", folder, entries, err, want)
		}
	}
}

func TestAnotherKernelSeesNothing(t *testing.T) {
	inCell(t, t.TempDir())
	keep(t, "loss", 1.5)
	t.Setenv("GONB_TMP_DIR", t.TempDir())
	_, err := notebook.Kept[float64]("loss")
	must.Refuse(t, "another kernel", err, "no value kept")
	t.Setenv("GONB_TMP_DIR", "")
	must.Refuse(t, "without a folder", notebook.Keep("loss", 1.5), "GONB_TMP_DIR")
}

func TestKeptErrors(t *testing.T) {
	inCell(t, t.TempDir())
	const first = `; run the cell that calls notebook.Keep("loss", …) first`
	_, err := notebook.Kept[float64]("loss")
	must.Refuse(t, "of nothing", err, `notebook: no value kept under "loss"; kept so far: nothing`+first)
	for _, name := range []string{"weights", "accuracy/1"} {
		keep(t, name, 0.5)
	}
	_, err = notebook.Kept[float64]("loss")
	must.Refuse(t, "of others", err, `notebook: no value kept under "loss"; kept so far: "accuracy/1", "weights"`+first)
	_, err = notebook.Kept[[]int]("weights")
	must.Refuse(t, "another type", err, `notebook: reading "weights": the value is a float64, not a []int`)
	_, err = notebook.Kept[any]("weights")
	must.Refuse(t, "any type", err, `notebook: reading "weights": the value is a float64, not a interface {}`)
}

// The two functions each declare a type run, as two cells may.
func TestKeptOfTypeDeclaredAnew(t *testing.T) {
	keepFirst := func() error {
		type run struct{ Loss float64 }
		return notebook.Keep("run", run{1})
	}
	readSecond := func() error {
		type run struct{ Loss float32 }
		_, err := notebook.Kept[run]("run")
		return err
	}
	everywhere(t, func(t *testing.T) {
		must.Do(t, keepFirst())
		must.Refuse(t, "another type run", readSecond(), "declared again")
	})
}

func TestKeepRefuses(t *testing.T) {
	type hidden struct {
		Shown  int
		hidden int
	}
	type event struct {
		time.Time
		Label string
	}
	finalized := tensors.FromValue([]float32{1})
	finalized.MustFinalizeAll()
	tests := []struct {
		name  string
		value any
		want  string
	}{
		{"nil", nil, "nil has no type"},
		{"func", func() {}, "func() is a func"},
		{"channel", struct{ C []chan int }{}, "C[] is a chan"},
		{"unexported", []hidden{{hidden: 1}}, "hidden is not exported"},
		{"interface", map[string]any{"a": 1}, "is an interface"},
		{"error", struct{ Err error }{}, ".Err is an interface (error)"},
		{"map key", map[any]int{}, "key is an interface"},
		{"pointer number", uintptr(1), "uintptr"},
		{"list", node{}, ".Next is a notebook_test.node, a type that contains itself"},
		{"embedded marshaler", event{}, "embeds time.Time"},
		{"pointer to a number", struct{ P *int }{}, ".P is a pointer to a int"},
		{"nil pointer", (*point)(nil), "nil *notebook_test.point"},
		{"nil pointers", []*point{nil}, "nil element"},
		{"finalized tensor", map[string]*tensors.Tensor{"w": finalized}, "finalized"},
		{"tensor by value", &struct{ T []tensors.Tensor }{}, "*tensors.Tensor"},
	}
	everywhere(t, func(t *testing.T) {
		for _, test := range tests {
			keep(t, "value", "old")
			must.Refuse(t, test.name, notebook.Keep("value", test.value), test.want, `"value"`)
			checkKept(t, "value", "old")
		}
	})
}

// Several goroutines replace and read one value: each read gives a whole one.
func TestKeepConcurrently(t *testing.T) {
	everywhere(t, func(t *testing.T) {
		keep(t, "value", []int{0, 0})
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				for j := range 20 {
					if err := notebook.Keep("value", []int{i * j, i * j}); err != nil {
						t.Error(err)
					}
					got, err := notebook.Kept[[]int]("value")
					if err != nil || len(got) != 2 || got[0] != got[1] {
						t.Errorf("got %v, %v", got, err)
					}
				}
			})
		}
		wg.Wait()
	})
}

// A full disk, or here a folder that is a file, is an error.
func TestKeepWithoutFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must.Do(t, os.WriteFile(file, nil, 0o600))
	inCell(t, file)
	must.Refuse(t, "Keep", notebook.Keep("value", 1), "")
	_, err := notebook.Kept[int]("value")
	must.Refuse(t, "Kept", err, "")
}

// One cell keeps a result, a later one reads it.
func ExampleKeep() {
	type result struct {
		Losses []float64
		Note   string
	}
	if err := notebook.Keep("baseline", result{[]float64{2.5, 1.25}, "one device"}); err != nil {
		fmt.Println(err)
	}

	baseline, err := notebook.Kept[result]("baseline")
	fmt.Println(baseline.Losses, baseline.Note, err)
	_, err = notebook.Kept[string]("baseline")
	fmt.Println(err)
	// Output:
	// [2.5 1.25] one device <nil>
	// notebook: reading "baseline": the value is a notebook_test.result, not a string
}
