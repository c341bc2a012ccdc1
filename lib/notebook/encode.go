package notebook

import (
	"encoding/binary"
	"fmt"
	"io"
	"reflect"
)

// encoder writes values; after its first error it does nothing.
type encoder struct {
	w   io.Writer
	err error
}

func (e *encoder) fail(err error) {
	if e.err == nil {
		e.err = err
	}
}

func (e *encoder) write(p []byte) {
	if e.err == nil {
		_, e.err = e.w.Write(p)
	}
}

func (e *encoder) count(n int)   { e.write(binary.AppendUvarint(nil, uint64(n))) }
func (e *encoder) text(s string) { e.count(len(s)); e.write([]byte(s)) }

// flag writes whether something is there.
func (e *encoder) flag(there bool) {
	if there {
		e.write([]byte{1})
	} else {
		e.write([]byte{0})
	}
}

// value writes v, which is addressable.
func (e *encoder) value(v reflect.Value, depth int) {
	if depth > maxDepth {
		e.fail(fmt.Errorf("a %s is nested more than %d deep or contains itself", v.Type(), maxDepth))
	}
	if e.err != nil {
		return
	}
	t := v.Type()
	if t == tensorType {
		e.tensor(v.Interface().(tensorPointer))
		return
	}
	if isPlain(t) {
		e.write(memory(v.Addr().UnsafePointer(), t, 1))
		return
	}
	if marshal, _ := marshaler(t); marshal != nil {
		data, err := marshal(v.Addr().Interface())
		if err != nil {
			e.fail(fmt.Errorf("marshaling a %s: %w", t, err))
			return
		}
		e.count(len(data))
		e.write(data)
		return
	}
	switch t.Kind() {
	case reflect.Bool:
		e.flag(v.Bool())
	case reflect.String:
		e.text(v.String())
	case reflect.Pointer:
		e.flag(!v.IsNil())
		if !v.IsNil() {
			e.value(v.Elem(), depth+1)
		}
	case reflect.Slice:
		e.flag(!v.IsNil())
		if v.IsNil() {
			return
		}
		e.count(v.Len())
		if isPlain(t.Elem()) {
			e.write(memory(v.UnsafePointer(), t.Elem(), v.Len()))
			return
		}
		for i := 0; i < v.Len() && !takesNoBytes(t.Elem()); i++ {
			e.value(v.Index(i), depth+1)
		}
	case reflect.Array:
		for i := range v.Len() {
			e.value(v.Index(i), depth+1)
		}
	case reflect.Map:
		e.flag(!v.IsNil())
		if v.IsNil() {
			return
		}
		e.count(v.Len())
		for iter := v.MapRange(); iter.Next(); {
			e.value(addressable(iter.Key()), depth+1)
			e.value(addressable(iter.Value()), depth+1)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if t.Field(i).Name != "_" {
				e.value(v.Field(i), depth+1)
			}
		}
	default:
		e.fail(fmt.Errorf("a %s cannot be kept", t)) // signatureOf has refused it already
	}
}
