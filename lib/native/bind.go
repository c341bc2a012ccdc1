package native

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"runtime"
	"unsafe"
)

// Bind makes Load set *function to call the C function of that name. F is a function type; the compiler checks that the
// C parameters match those of F:
//
//	[]float32                 slice_f32, a struct of the address at and the number of elements n
//	[]float64, []int32, …     slice_f64, slice_i32, …: bool, i8 to i64, u8 to u64; int is i64, uint u64
//	[]float16.Float16, …      slice_u16: of float16 and bfloat16, C sees the bits
//	*float32, unsafe.Pointer  float *, void *
//	float32, int32, int, …    float, int32_t, int64_t, …
//
// F returns nothing, a number, or an error. For an error the C function returns a const char *: NULL, or a message that
// is not freed. C must not keep pointers to Go memory after it returns. Several goroutines may call the function at
// once if the C function allows that. A call takes one or two microseconds more than in C.
//
// Load returns an error for other types, for a name that C does not know or that is bound twice, and for a number of
// another type than C's parameter, unless the C type can hold all its values.
func Bind[F any](name string, function *F) Option {
	return func(c *config) error {
		if function == nil {
			return fmt.Errorf("native: Bind(%q) has no function to set: give it the address of a variable", name)
		}
		b, err := newBinding(name, reflect.ValueOf(function).Elem())
		if err != nil {
			return fmt.Errorf("native: Bind(%q) with a %v: %w", name, reflect.TypeFor[F](), err)
		}
		return c.bind(b)
	}
}

func (c *config) bind(b *binding) error {
	for _, other := range c.bound {
		if other.name == b.name {
			return fmt.Errorf("native: %q is bound twice: bind it once", b.name)
		}
	}
	c.bound = append(c.bound, b)
	return nil
}

// binding is a C function and the Go variable for it, or a CUDA kernel and how it is launched.
type binding struct {
	name       string
	variable   reflect.Value
	of         reflect.Type // the variable's, or the kernel's
	launch     *Launch
	parameters []parameter
	words      int    // that its arguments take
	result     number // a number; or nothing
	fails      bool   // returns an error
	call       unsafe.Pointer
}

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func newBinding(name string, variable reflect.Value) (*binding, error) {
	if !identifier.MatchString(name) {
		return nil, errors.New("the name is not one of C's")
	}
	t := variable.Type()
	if t.Kind() != reflect.Func || t.IsVariadic() || t.NumOut() > 1 {
		return nil, errors.New("give it a function with a fixed number of parameters and at most one result")
	}
	b := &binding{name: name, variable: variable, of: t}
	for i := range t.NumIn() {
		p, ok := parameterOf(t.In(i))
		if !ok {
			return nil, fmt.Errorf("parameter %d is of type %v: make it a number, a slice of numbers, a pointer to "+
				"one, or an unsafe.Pointer", i, t.In(i))
		}
		b.parameters = append(b.parameters, p)
		b.words += p.words
	}
	if t.NumOut() == 0 {
		return b, nil
	}
	b.fails = t.Out(0) == reflect.TypeFor[error]()
	var ok bool
	if b.result, ok = numbers[t.Out(0).Kind()]; !ok && !b.fails {
		return nil, fmt.Errorf("its result is of type %v: make it a number or an error", t.Out(0))
	}
	return b, nil
}

// set makes the variable call C.
func (b *binding) set() {
	t := b.variable.Type()
	b.variable.Set(reflect.MakeFunc(t, func(args []reflect.Value) []reflect.Value {
		var pins runtime.Pinner
		defer pins.Unpin()
		words := make([]uint64, b.words)
		at := words
		for i, p := range b.parameters {
			p.store(at, args[i], &pins)
			at = at[p.words:]
		}
		if t.NumOut() == 0 {
			call(b.call, words, nil)
			return nil
		}
		result := reflect.New(t.Out(0))
		if !b.fails {
			call(b.call, words, result.UnsafePointer())
		} else if message := call(b.call, words, nil); message != "" {
			result.Elem().Set(reflect.ValueOf(fmt.Errorf("native: %s: %s", b.name, message)))
		}
		return []reflect.Value{result.Elem()}
	}))
}

// number is a numeric type: its name in C, the suffix of its slice type, its size in bytes, and the matching XLA
// element types (xla/xla_data.proto, PrimitiveType).
type number struct {
	c, slice string
	bytes    int
	xla      []int
}

var numbers = map[reflect.Kind]number{
	reflect.Bool:    {"bool", "bool", 1, []int{1}},
	reflect.Int8:    {"int8_t", "i8", 1, []int{2}},
	reflect.Int16:   {"int16_t", "i16", 2, []int{3}},
	reflect.Int32:   {"int32_t", "i32", 4, []int{4}},
	reflect.Int64:   {"int64_t", "i64", 8, []int{5}},
	reflect.Int:     {"int64_t", "i64", 8, []int{5}},
	reflect.Uint8:   {"uint8_t", "u8", 1, []int{6}},
	reflect.Uint16:  {"uint16_t", "u16", 2, []int{7, 10, 16}}, // float16 and bfloat16 too
	reflect.Uint32:  {"uint32_t", "u32", 4, []int{8}},
	reflect.Uint64:  {"uint64_t", "u64", 8, []int{9}},
	reflect.Uint:    {"uint64_t", "u64", 8, []int{9}},
	reflect.Float32: {"float", "f32", 4, []int{11}},
	reflect.Float64: {"double", "f64", 8, []int{12}},
}

// parameter says how an argument is passed: in words of eight bytes, of which C copies the bytes of its own type.
type parameter struct {
	c     string // its type in C
	kind  reflect.Kind
	of    number // it, its elements, or what it points to
	words int
}

// parameterOf returns how values of a type are passed, and false if they cannot be.
func parameterOf(t reflect.Type) (parameter, bool) {
	p := parameter{kind: t.Kind(), words: 1}
	var ok bool
	switch p.kind {
	case reflect.Slice:
		p.of, ok = numbers[t.Elem().Kind()]
		p.c, p.words = "slice_"+p.of.slice, 2
	case reflect.Pointer:
		p.of, ok = numbers[t.Elem().Kind()]
		p.c = p.of.c + " *"
	case reflect.UnsafePointer:
		p.c, ok = "void *", true
	default:
		p.of, ok = numbers[p.kind]
		p.c = p.of.c
	}
	return p, ok
}

// store writes an argument into words, and pins the memory that it points to.
func (p parameter) store(words []uint64, arg reflect.Value, pins *runtime.Pinner) {
	switch p.kind {
	case reflect.Slice, reflect.Pointer, reflect.UnsafePointer:
		address := arg.UnsafePointer()
		pins.Pin(address)
		words[0] = uint64(uintptr(address))
		if p.kind == reflect.Slice {
			words[1] = uint64(arg.Len())
		}
	default:
		reflect.NewAt(arg.Type(), unsafe.Pointer(&words[0])).Elem().Set(arg)
	}
}

// points reports whether the parameter contains a pointer.
func (p parameter) points() bool {
	return p.kind == reflect.Slice || p.kind == reflect.Pointer || p.kind == reflect.UnsafePointer
}
