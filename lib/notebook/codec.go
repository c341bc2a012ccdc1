package notebook

import (
	"bytes"
	"encoding"
	"encoding/gob"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/resident"
)

// header precedes a value in its file: cells are compiled separately, so a type may have changed between two cells.
type header struct{ Type, Signature string }

// encode writes a value with encoding/gob, and returns an error for types that gob would save incompletely.
func encode(value reflect.Value) (stored, error) {
	signature, as, err := describe(value.Type())
	if err != nil {
		return stored{}, err
	}
	if value.Kind() == reflect.Pointer && value.IsNil() {
		return stored{}, fmt.Errorf("it is a nil %s", value.Type())
	}
	coding.Lock()
	defer coding.Unlock()
	coding.arrays = nil
	var b bytes.Buffer
	e := gob.NewEncoder(&b)
	if err := e.Encode(header{value.Type().String(), signature}); err != nil {
		return stored{}, err
	}
	copied := reflect.New(value.Type())
	copied.Elem().Set(value)
	err = e.EncodeValue(reflect.NewAt(as, copied.UnsafePointer()))
	return stored{b.Bytes(), coding.arrays}, err
}

// coding has the arrays of the value that is being encoded or decoded, which gob's methods do not get.
var coding struct {
	sync.Mutex
	arrays []resident.KeptArray
}

// decode reads what encode wrote into the addressable value into.
func decode(from stored, into reflect.Value) error {
	coding.Lock()
	defer coding.Unlock()
	coding.arrays = from.arrays
	d := gob.NewDecoder(bytes.NewReader(from.data))
	var is header
	if err := d.Decode(&is); err != nil {
		return fmt.Errorf("the saved value is damaged: run the cell that calls Keep again: %w", err)
	}
	if is.Type != into.Type().String() {
		return fmt.Errorf("the value is a %s, not a %s", is.Type, into.Type())
	}
	signature, as, err := describe(into.Type())
	if err != nil || signature != is.Signature {
		return fmt.Errorf("the value is a %s, a type that was declared again and changed: run the cell "+
			"that calls Keep again", is.Type)
	}
	return d.DecodeValue(reflect.NewAt(as, into.Addr().UnsafePointer()))
}

// tensor gives *tensors.Tensor the methods of gob, with the same memory layout. GoMLX's GobSerialize is not used
// because it writes one number at a time.
type tensor struct{ *tensors.Tensor }

// GobEncode returns the shape and the bytes in host memory, or the place of a copy on the device; nothing for nil.
func (t tensor) GobEncode() ([]byte, error) {
	if t.Tensor == nil {
		return nil, nil
	}
	if !t.Ok() {
		return nil, errors.New("a tensor has been finalized or was never set")
	}
	var b bytes.Buffer
	e := gob.NewEncoder(&b)
	if err := t.Shape().GobSerialize(e); err != nil || t.Shape().IsZeroSize() {
		return b.Bytes(), err
	}
	if number := resident.ArrayOf(t.Tensor); number != 0 {
		kept, err := resident.KeepArray(number)
		coding.arrays = append(coding.arrays, kept)
		err = errors.Join(err, e.Encode([]byte(nil)), e.Encode(len(coding.arrays)))
		return b.Bytes(), err
	}
	var written error
	err := t.ConstBytes(func(data []byte) { written = e.Encode(data) })
	return b.Bytes(), errors.Join(err, written)
}

// GobDecode creates a tensor in host memory.
func (t *tensor) GobDecode(data []byte) error {
	if len(data) == 0 {
		return nil
	}
	d := gob.NewDecoder(bytes.NewReader(data))
	shape, err := shapes.GobDeserialize(d)
	if err != nil {
		return err
	}
	t.Tensor = tensors.FromShape(shape)
	if shape.IsZeroSize() {
		return nil
	}
	var content []byte
	if err := d.Decode(&content); err != nil {
		return err
	}
	if len(content) == 0 {
		var place int // from 1
		if err := d.Decode(&place); err != nil {
			return err
		}
		if content, err = coding.arrays[place-1].Content(); err != nil {
			return err
		}
	}
	return t.MutableBytes(func(b []byte) { copy(b, content) })
}

// describe returns a signature, which two types share only if a value of one can be read as a value of the other, and
// the type to give to gob in place of t: the same memory layout, with tensor for *tensors.Tensor. The error names the
// part of t that cannot be saved.
func describe(t reflect.Type) (signature string, as reflect.Type, err error) {
	var d describer
	as, err = d.add(t, t.String())
	return d.String(), as, err
}

type describer struct {
	strings.Builder
	inside []reflect.Type // from the outermost inwards
}

// add appends the signature of t, found at place in the outermost type.
func (d *describer) add(t reflect.Type, place string) (as reflect.Type, err error) {
	fmt.Fprintf(d, "%s.%s", t.PkgPath(), t)
	switch {
	case t == reflect.TypeFor[*tensors.Tensor]():
		return reflect.TypeFor[tensor](), nil
	case t == reflect.TypeFor[tensors.Tensor]():
		return nil, fmt.Errorf("%s is a tensor by value: keep a *tensors.Tensor", place)
	case slices.Contains(d.inside, t):
		return nil, fmt.Errorf("%s is a %s, a type that contains itself", place, t)
	}
	d.inside = append(d.inside, t)
	defer func() { d.inside = d.inside[:len(d.inside)-1] }()
	if t.Kind() != reflect.Pointer && t.Kind() != reflect.Struct && marshals(t) {
		return t, nil
	}
	switch t.Kind() {
	case reflect.Struct:
		return d.fields(t, place)
	case reflect.Pointer:
		// Gob omits a pointer to a zero value, which would be read back as nil.
		if t.Elem().Kind() != reflect.Struct {
			return nil, fmt.Errorf("%s is a pointer to a %s: only pointers to structs can be kept", place, t.Elem())
		}
		as, err = d.add(t.Elem(), place)
		if as == t.Elem() || err != nil {
			return t, err
		}
		return reflect.PointerTo(as), nil
	case reflect.Slice, reflect.Array:
		as, err = d.add(t.Elem(), place+"[]")
		switch {
		case as == t.Elem() || err != nil:
			return t, err
		case t.Kind() == reflect.Slice:
			return reflect.SliceOf(as), nil
		}
		return reflect.ArrayOf(t.Len(), as), nil
	case reflect.Map:
		if _, err = d.add(t.Key(), place+" key"); err != nil {
			return nil, err
		}
		as, err = d.add(t.Elem(), place+"[]")
		if as == t.Elem() || err != nil {
			return t, err
		}
		return reflect.MapOf(t.Key(), as), nil
	case reflect.Interface:
		return nil, fmt.Errorf("%s is an interface (%s), which cannot be kept: give it a concrete type", place, t)
	case reflect.Func, reflect.Chan, reflect.Uintptr, reflect.UnsafePointer:
		return nil, fmt.Errorf("%s is a %s, which cannot be kept", place, t.Kind())
	}
	d.WriteString(t.Kind().String())
	return t, nil
}

// fields is add for a struct.
func (d *describer) fields(t reflect.Type, place string) (reflect.Type, error) {
	var fields []reflect.StructField
	changed := false
	for i := range t.NumField() {
		f := t.Field(i)
		switch {
		case f.Anonymous && marshals(f.Type):
			return nil, fmt.Errorf("%s embeds %s, which marshals itself and would leave the other fields out: "+
				"give the field a name", place, f.Type)
		case marshals(t) || f.Name == "_":
		case !f.IsExported():
			return nil, fmt.Errorf("%s.%s is not exported and would be left out: only structs whose fields all begin "+
				"with a capital letter can be kept", place, f.Name)
		default:
			d.WriteString(" " + f.Name + " ")
			as, err := d.add(f.Type, place+"."+f.Name)
			if err != nil {
				return nil, err
			}
			changed = changed || as != f.Type
			f.Type, f.Anonymous = as, false
		}
		fields = append(fields, f)
	}
	d.WriteByte(';')
	if !changed {
		return t, nil
	}
	return reflect.StructOf(fields), nil
}

// marshals reports whether gob lets values of type t marshal themselves.
func marshals(t reflect.Type) bool {
	if t.Kind() != reflect.Pointer {
		t = reflect.PointerTo(t)
	}
	return t.Implements(reflect.TypeFor[gob.GobEncoder]()) || t.Implements(reflect.TypeFor[encoding.BinaryMarshaler]())
}
