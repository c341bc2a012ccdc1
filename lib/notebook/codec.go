package notebook

import (
	"encoding"
	"encoding/binary"
	"encoding/gob"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"reflect"
	"unsafe"
)

// The file of a kept value is
//
//	magic, type name, type signature, value, CRC-32C of all that
//
// encoding/gob is not used because it would not give every value back: it drops fields that are not exported without a
// word, turns pointers to zero and empty slices into nil, changes the bits of signaling NaNs, and stores tensors one
// number at a time. Numbers are in this machine's byte order: no file outlives the kernel process that it belongs to.
const magic = "kept value 1\n"

// maxDepth bounds the nesting of a value, so that one that contains itself is an error and not a stack overflow.
const maxDepth = 10_000

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encodeFile writes the whole file of a kept value.
func encodeFile(w io.Writer, value reflect.Value) error {
	signature, err := signatureOf(value.Type())
	if err != nil {
		return err
	}
	sum := crc32.New(castagnoli)
	e := encoder{w: io.MultiWriter(w, sum)}
	e.write([]byte(magic))
	e.text(value.Type().String())
	e.text(signature)
	e.value(addressable(value), 0)
	if e.err != nil {
		return e.err
	}
	_, err = w.Write(binary.LittleEndian.AppendUint32(nil, sum.Sum32()))
	return err
}

var errDamaged = errors.New("the kept value's file is damaged; run the cell that keeps it again")

// decodeFile sets into, which is addressable and zero, from the whole file of a kept value.
func decodeFile(data []byte, into reflect.Value) (err error) {
	n := len(data) - crc32.Size
	if n < 0 || crc32.Checksum(data[:n], castagnoli) != binary.LittleEndian.Uint32(data[n:]) {
		return errDamaged
	}
	// The checksum vouches for the bytes but not for the UnmarshalBinary and GobDecode methods that they are given to.
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w (%v)", errDamaged, r)
		}
	}()
	d := decoder{data: data[:n]}
	if string(d.take(len(magic))) != magic {
		return errDamaged
	}
	typeName, signature := d.text(), d.text()
	if d.err != nil {
		return d.err
	}
	want, wantErr := signatureOf(into.Type())
	if typeName != into.Type().String() {
		return fmt.Errorf("a %s is kept there, not a %s", typeName, into.Type())
	}
	if wantErr != nil || signature != want {
		return fmt.Errorf("a %s is kept there, but that type has been declared anew since; run the cell "+
			"that keeps it again", typeName)
	}
	d.value(into, 0)
	if d.err == nil && len(d.data) > 0 {
		d.fail(errDamaged)
	}
	return d.err
}

// addressable returns a copy of v that can be addressed, as everything reached from it then can.
func addressable(v reflect.Value) reflect.Value {
	p := reflect.New(v.Type()).Elem()
	p.Set(v)
	return p
}

// isPlain reports whether values of type t are numbers without gaps, of which every bit pattern is valid.
func isPlain(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Array:
		return isPlain(t.Elem())
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64,
		reflect.Float32, reflect.Float64, reflect.Complex64, reflect.Complex128:
		return true
	}
	return false
}

// memory returns the bytes of n consecutive plain values of type t that begin at p.
func memory(p unsafe.Pointer, t reflect.Type, n int) []byte {
	return unsafe.Slice((*byte)(p), n*int(t.Size()))
}

var (
	binaryMarshaler = reflect.TypeFor[encoding.BinaryMarshaler]()
	gobEncoder      = reflect.TypeFor[gob.GobEncoder]()
)

// marshaler returns how values of type t marshal themselves, if they do. A struct that embeds such a type has its
// methods too, and they would leave its other fields out: it counts as one that does not.
func marshaler(t reflect.Type) (marshal func(v any) ([]byte, error), unmarshal func(v any, data []byte) error) {
	if t.Kind() == reflect.Struct {
		for i := range t.NumField() {
			f := t.Field(i)
			inner := f.Type
			if inner.Kind() != reflect.Pointer {
				inner = reflect.PointerTo(inner)
			}
			if f.Anonymous && (inner.Implements(binaryMarshaler) || inner.Implements(gobEncoder)) {
				return nil, nil
			}
		}
	}
	switch reflect.Zero(reflect.PointerTo(t)).Interface().(type) {
	case interface {
		encoding.BinaryMarshaler
		encoding.BinaryUnmarshaler
	}:
		return func(v any) ([]byte, error) { return v.(encoding.BinaryMarshaler).MarshalBinary() },
			func(v any, data []byte) error { return v.(encoding.BinaryUnmarshaler).UnmarshalBinary(data) }
	case interface {
		gob.GobEncoder
		gob.GobDecoder
	}:
		return func(v any) ([]byte, error) { return v.(gob.GobEncoder).GobEncode() },
			func(v any, data []byte) error { return v.(gob.GobDecoder).GobDecode(data) }
	}
	return nil, nil
}

// takesNoBytes reports whether values of type t, like struct{}, are written as nothing.
func takesNoBytes(t reflect.Type) bool {
	if marshal, _ := marshaler(t); marshal != nil && !isPlain(t) {
		return false
	}
	switch t.Kind() {
	case reflect.Array:
		return t.Len() == 0 || takesNoBytes(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if f := t.Field(i); f.Name != "_" && !takesNoBytes(f.Type) {
				return false
			}
		}
		return true
	}
	return false
}
