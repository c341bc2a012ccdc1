package native_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"github.com/gomlx/compute/dtypes/float16"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/native"
)

// Every type goes in as a number, a pointer and a slice, and comes back as a result, with its least and greatest value.
func TestEveryType(t *testing.T) {
	everyType(t, "bool", "bool", false, true)
	everyType(t, "int8_t", "i8", int8(math.MinInt8), math.MaxInt8)
	everyType(t, "int16_t", "i16", int16(math.MinInt16), math.MaxInt16)
	everyType(t, "int32_t", "i32", int32(math.MinInt32), math.MaxInt32)
	everyType(t, "int64_t", "i64", int64(math.MinInt64), math.MaxInt64)
	everyType(t, "int64_t", "i64", int(math.MinInt), math.MaxInt)
	everyType(t, "uint8_t", "u8", uint8(0), math.MaxUint8)
	everyType(t, "uint16_t", "u16", uint16(0), math.MaxUint16)
	everyType(t, "uint16_t", "u16", float16.FromFloat32(-65504), float16.FromFloat32(0.1))
	everyType(t, "uint32_t", "u32", uint32(0), math.MaxUint32)
	everyType(t, "uint64_t", "u64", uint64(0), math.MaxUint64)
	everyType(t, "uint64_t", "u64", uint(0), math.MaxUint)
	everyType(t, "float", "f32", float32(-math.MaxFloat32), math.SmallestNonzeroFloat32)
	everyType(t, "double", "f64", -math.MaxFloat64, math.SmallestNonzeroFloat64)
}

func everyType[T comparable](t *testing.T, c, slice string, low, high T) {
	t.Helper()
	var same func(T) T
	var swap func(a, b *T)
	var turn func(to, from []T) int
	load(t, fmt.Sprintf(`
%[1]s same(%[1]s x) { return x; }
void swap(%[1]s *a, %[1]s *b) { %[1]s c = *a; *a = *b; *b = c; }
int64_t turn(slice_%[2]s to, slice_%[2]s from) {
	for (int64_t i = 0; i < from.n; i++) to.at[to.n - 1 - i] = from.at[i];
	return sizeof *to.at;
}`, c, slice), native.Bind("same", &same), native.Bind("swap", &swap), native.Bind("turn", &turn))
	for _, x := range []T{low, high} {
		if got := same(x); got != x {
			t.Errorf("%T %v became %v", x, x, got)
		}
	}
	a, b := low, high
	if swap(&a, &b); a != high || b != low {
		t.Errorf("%T: %v, %v were not swapped", a, a, b)
	}
	from, to := []T{low, high, high}, make([]T, 4)
	if size := turn(to[1:], from); size != int(unsafe.Sizeof(low)) {
		t.Errorf("%T has %d bytes in C", low, size)
	}
	var zero T
	if want := []T{zero, high, high, low}; !slices.Equal(to, want) {
		t.Errorf("%T: %v, want %v", low, to, want)
	}
}

// Many arguments of mixed types, in an order of chance: weighted sums that no swap of arguments leaves as they are.
func TestManyArguments(t *testing.T) {
	var mixed func(a int8, x []float32, b float64, c *int32, d bool, y []int64, e float32, f uint16,
		p unsafe.Pointer) float64
	load(t, `
double mixed(int8_t a, slice_f32 x, double b, const int32_t *c, bool d, slice_i64 y, float e, uint16_t f, void *p) {
	double sum = a + 3 * b + 5 * *c + 7 * d + 11 * e + 13 * f + 17 * *(double *)p;
	for (int64_t i = 0; i < x.n; i++) sum += (double)(i + 1) * x.at[i];
	for (int64_t i = 0; i < y.n; i++) sum -= (double)((i + 1) * y.at[i]);
	return sum;
}`, native.Bind("mixed", &mixed))
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		a, b, c, d := int8(r.Int()), float64(r.IntN(1000)), int32(r.IntN(1000)), r.IntN(2) == 1
		e, f, p := float32(r.IntN(1000)), uint16(r.Int()), float64(r.IntN(1000))
		x, y := make([]float32, r.IntN(9)), make([]int64, r.IntN(9))
		want := float64(a) + 3*b + 5*float64(c) + 11*float64(e) + 13*float64(f) + 17*p
		if d {
			want += 7
		}
		for i := range x {
			x[i] = float32(r.IntN(1000))
			want += float64(i+1) * float64(x[i])
		}
		for i := range y {
			y[i] = r.Int64N(1000)
			want -= float64(int64(i+1) * y[i])
		}
		if got := mixed(a, x, b, &c, d, y, e, f, unsafe.Pointer(&p)); got != want { // integers: exact
			t.Fatalf("%g, want %g", got, want)
		}
	}
}

func TestNilAndEmpty(t *testing.T) {
	var lengths func(a, b []float32, p *float32) error
	load(t, `const char *lengths(slice_f32 a, slice_f32 b, float *p) {
		return a.n || a.at || b.n || p ? "there is something" : NULL;
	}`, native.Bind("lengths", &lengths))
	if err := lengths(nil, []float32{}, nil); err != nil {
		t.Error(err)
	}
	wants(t, lengths([]float32{1}, nil, nil), "lengths: there is something")
}

// Several goroutines call one function, and each gets its own answer.
func TestCallsAtOnce(t *testing.T) {
	var add func(x []float64) float64
	load(t, `double add(slice_f64 x) { double s = 0; for (int64_t i = 0; i < x.n; i++) s += x.at[i]; return s; }`,
		native.Bind("add", &add))
	var all sync.WaitGroup
	for worker := range 8 {
		all.Go(func() {
			for i := range 200 {
				if got, want := add([]float64{float64(worker), float64(i), 1}), float64(worker+i+1); got != want {
					t.Errorf("%g, want %g", got, want)
				}
			}
		})
	}
	all.Wait()
}

// A function of the source's is meant even if the process has another of that name.
func TestOwnSymbolsFirst(t *testing.T) {
	var random func() float64
	load(t, `double drand48(void) { return 7; }`, native.Bind("drand48", &random))
	if got := random(); got != 7 {
		t.Errorf("the C library's function was called: %g", got)
	}
}

// Two bindings and a symbol are of one library: they see the same variable.
func TestOneLibrary(t *testing.T) {
	var set func(int32)
	var get func() int32
	l := load(t, `int32_t state; void set(int32_t x) { state = x; } static int32_t get(void) { return state; }`,
		native.Bind("set", &set), native.Bind("get", &get))
	set(5)
	p := must.Get(l.Symbol("state"))(t)
	if got, there := get(), *(*int32)(p); got != 5 || there != 5 {
		t.Errorf("get gives %d, the variable is %d; want 5", got, there)
	}
	_, err := l.Symbol("get")
	wants(t, err, `"get"`, "static")
}

func TestBindErrors(t *testing.T) {
	source := `
const char *f(slice_f32 x, int n) { return NULL; }
float g(double x) { return 1; }
void h(float *x) {}`
	for _, c := range []struct {
		name  string
		bind  native.Option
		words []string
	}{
		{"no variable", native.Bind[func()]("f", nil), []string{"no function"}},
		{"no function", native.Bind("f", new(int)), []string{"int", "function"}},
		{"variadic", native.Bind("f", new(func(...float32))), []string{"fixed number"}},
		{"two results", native.Bind("f", new(func() (int, error))), []string{"one result"}},
		{"parameter", native.Bind("f", new(func(string))), []string{"parameter 0", "string"}},
		{"slice of slices", native.Bind("f", new(func(int, [][]float32))), []string{"parameter 1", "[][]float32"}},
		{"result", native.Bind("f", new(func() []float32)), []string{"result", "[]float32"}},
		{"name", native.Bind("f(); system", new(func())), []string{"C's"}},
		{"unknown", native.Bind("ff", new(func(x []float32, n int32) error)),
			[]string{"Bind ff", "implicit declaration"}},
		{"too few", native.Bind("f", new(func(x []float32) error)),
			[]string{"Bind f as func([]float32) error", "too few arguments"}},
		{"too many", native.Bind("f", new(func(x []float32, n, m int32) error)), []string{"too many arguments"}},
		{"wide integer", native.Bind("f", new(func(x []float32, n int) error)),
			[]string{"int64_t", "may change value"}},
		{"another slice", native.Bind("f", new(func(x []float64, n int32) error)), []string{"slice_f32", "slice_f64"}},
		{"another pointer", native.Bind("h", new(func(*float64))), []string{"incompatible pointer"}},
		{"number as pointer", native.Bind("h", new(func(int))), []string{"pointer from integer"}},
		{"narrow result", native.Bind("g", new(func(float64) int)), []string{"float"}},
		{"no message", native.Bind("g", new(func(float64) error)), []string{"incompatible types"}},
		{"void result", native.Bind("h", new(func(*float32) int)), []string{"void"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := native.Load(source, native.WithCache(kept), c.bind)
			wants(t, err, c.words...)
		})
	}
	var f func([]float32, int32) error
	_, err := native.Load(source, native.WithCache(kept), native.Bind("f", &f), native.Bind("f", &f))
	wants(t, err, "twice")
	_, err = native.Load(source, native.WithCache(kept), native.Bind("f", &f), native.Bind("none", new(func())))
	if wants(t, err, "none"); f != nil {
		t.Error("a function is bound although Load failed")
	}
}
