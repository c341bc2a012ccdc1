package xla

import "google.golang.org/protobuf/encoding/protowire"

// wireField is a field of a serialized protobuf message: the bytes of a string or message, or the varint of an integer.
type wireField struct {
	number protowire.Number
	bytes  []byte
	varint uint64
}

// eachField calls read for each field of a serialized message, in order.
func eachField(message []byte, read func(wireField) error) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		f := wireField{number: number}
		switch kind {
		case protowire.BytesType:
			f.bytes, n = protowire.ConsumeBytes(message)
		case protowire.VarintType:
			f.varint, n = protowire.ConsumeVarint(message)
		default:
			n = protowire.ConsumeFieldValue(number, kind, message)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		if err := read(f); err != nil {
			return err
		}
	}
	return nil
}

// eachEntry calls read for each field of the value of a map entry.
func eachEntry(entry []byte, read func(key int64, value wireField) error) error {
	var key int64
	return eachField(entry, func(f wireField) error {
		switch f.number {
		case 1:
			key = int64(f.varint)
		case 2:
			return eachField(f.bytes, func(f wireField) error { return read(key, f) })
		}
		return nil
	})
}
