package native

import (
	"reflect"
	"runtime"
	"unsafe"
)

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
