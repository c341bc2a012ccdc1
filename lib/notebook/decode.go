package notebook

import (
	"encoding/binary"
	"fmt"
	"math"
	"reflect"
	"unsafe"
)

// decoder reads values from data, which it consumes; after its first error it does nothing. It never allocates much
// more than data can fill.
type decoder struct {
	data []byte
	err  error
}

func (d *decoder) fail(err error) {
	if d.err == nil {
		d.err = err
	}
	d.data = nil
}

// take consumes n bytes, or none if there are not as many.
func (d *decoder) take(n int) []byte {
	if n < 0 || n > len(d.data) {
		d.fail(errDamaged)
		return nil
	}
	p := d.data[:n]
	d.data = d.data[n:]
	return p
}

// count reads a number from 0 to limit.
func (d *decoder) count(limit int) int {
	n, used := binary.Uvarint(d.data)
	if used <= 0 || n > uint64(limit) {
		d.fail(errDamaged)
		return 0
	}
	d.take(used)
	return int(n)
}

func (d *decoder) text() string { return string(d.take(d.count(len(d.data)))) }

func (d *decoder) flag() bool {
	p := d.take(1)
	if len(p) == 1 && p[0] > 1 {
		d.fail(errDamaged)
	}
	return len(p) == 1 && p[0] == 1
}

// copy fills the n plain values of type t at p.
func (d *decoder) copy(p unsafe.Pointer, t reflect.Type, n int) {
	copy(memory(p, t, n), d.take(n*int(t.Size())))
}

// value sets v, which is addressable and zero.
func (d *decoder) value(v reflect.Value, depth int) {
	if depth > maxDepth {
		d.fail(errDamaged)
	}
	if d.err != nil {
		return
	}
	t := v.Type()
	if t == tensorType {
		if tensor := d.tensor(); tensor != nil {
			v.Set(reflect.ValueOf(tensor))
		}
		return
	}
	if isPlain(t) {
		d.copy(v.Addr().UnsafePointer(), t, 1)
		return
	}
	if _, unmarshal := marshaler(t); unmarshal != nil {
		data := d.take(d.count(len(d.data)))
		if d.err != nil {
			return
		}
		// The clone is for methods that hold on to what they are given.
		if err := unmarshal(v.Addr().Interface(), append([]byte{}, data...)); err != nil {
			d.fail(fmt.Errorf("unmarshaling a %s: %w", t, err))
		}
		return
	}
	switch t.Kind() {
	case reflect.Bool:
		v.SetBool(d.flag())
	case reflect.String:
		v.SetString(d.text())
	case reflect.Pointer:
		if d.flag() {
			v.Set(reflect.New(t.Elem()))
			d.value(v.Elem(), depth+1)
		}
	case reflect.Slice:
		if d.flag() {
			d.slice(v, depth)
		}
	case reflect.Array:
		for i := range v.Len() {
			d.value(v.Index(i), depth+1)
		}
	case reflect.Map:
		if !d.flag() {
			return
		}
		v.Set(reflect.MakeMap(t))
		for n := d.count(max(1, len(d.data))); n > 0 && d.err == nil; n-- {
			key, elem := reflect.New(t.Key()).Elem(), reflect.New(t.Elem()).Elem()
			d.value(key, depth+1)
			d.value(elem, depth+1)
			v.SetMapIndex(key, elem)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if t.Field(i).Name != "_" {
				d.value(v.Field(i), depth+1)
			}
		}
	default:
		d.fail(fmt.Errorf("a %s cannot be kept", t))
	}
}

// slice sets v to a slice that is not nil.
func (d *decoder) slice(v reflect.Value, depth int) {
	t := v.Type()
	if takesNoBytes(t.Elem()) {
		n := d.count(math.MaxInt32)
		v.Set(reflect.MakeSlice(t, n, n))
		return
	}
	n := d.count(len(d.data)) // each element takes one byte at least
	if isPlain(t.Elem()) && n > len(d.data)/int(t.Elem().Size()) {
		d.fail(errDamaged)
	}
	if d.err != nil {
		return
	}
	v.Set(reflect.MakeSlice(t, n, n))
	if isPlain(t.Elem()) {
		d.copy(v.UnsafePointer(), t.Elem(), n)
		return
	}
	for i := 0; i < n && d.err == nil; i++ {
		d.value(v.Index(i), depth+1)
	}
}
