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

// parts are the fields of a message by number: the last integer, and the bytes of all strings and messages, in order.
type parts [8]struct {
	varint uint64
	bytes  [][]byte
}

// parts returns the fields of a message, but for those with larger numbers, which nothing needs.
func (w *wire) parts(message []byte) (p parts) {
	for number, f := range w.fields(message) {
		switch {
		case int(number) >= len(p):
		case f.bytes == nil:
			p[number].varint = f.varint
		default:
			p[number].bytes = append(p[number].bytes, f.bytes)
		}
	}
	return p
}

// last returns a field that should be there once.
func (p *parts) last(number int) []byte {
	if all := p[number].bytes; len(all) > 0 {
		return all[len(all)-1]
	}
	return nil
}

// entries yields the keys and the values of a plane's table.
func (w *wire) entries(table [][]byte) iter.Seq2[uint64, parts] {
	return func(yield func(uint64, parts) bool) {
		for _, message := range table {
			entry := w.parts(message)
			if !yield(entry[1].varint, w.parts(entry.last(2))) {
				return
			}
		}
	}
}
