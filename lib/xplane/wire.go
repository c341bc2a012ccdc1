//go:build !resident

package xplane

import (
	"iter"

	"google.golang.org/protobuf/encoding/protowire"
)

// wire reads serialized protobuf messages until an error.
type wire struct{ err error }

// field is a field's value: the bytes of a string or message, or an integer.
type field struct {
	bytes  []byte
	varint uint64
}

// fields yields the fields of a message by their numbers, in order.
func (w *wire) fields(message []byte) iter.Seq2[protowire.Number, field] {
	return func(yield func(protowire.Number, field) bool) {
		for w.err == nil && len(message) > 0 {
			var f field
			number, kind, n := protowire.ConsumeTag(message)
			if n >= 0 {
				message = message[n:]
				switch kind {
				case protowire.BytesType:
					f.bytes, n = protowire.ConsumeBytes(message)
				case protowire.VarintType:
					f.varint, n = protowire.ConsumeVarint(message)
				default:
					n = protowire.ConsumeFieldValue(number, kind, message)
				}
			}
			if n < 0 {
				w.err = protowire.ParseError(n)
				return
			}
			message = message[n:]
			if !yield(number, f) {
				return
			}
		}
	}
}

// entries yields the keys of a plane's table and the fields of the values.
func (w *wire) entries(table [][]byte) iter.Seq2[uint64, iter.Seq2[protowire.Number, field]] {
	return func(yield func(uint64, iter.Seq2[protowire.Number, field]) bool) {
		for _, entry := range table {
			var key, value field
			for number, f := range w.fields(entry) {
				switch number {
				case 1:
					key = f
				case 2:
					value = f
				}
			}
			if !yield(key.varint, w.fields(value.bytes)) {
				return
			}
		}
	}
}
