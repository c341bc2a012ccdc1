//go:build !resident

package xla

import (
	"errors"
	"iter"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// A profile is an XSpace of xplane.proto: planes (devices, the host) of lines (streams, threads) of events. Names are
// in numbered tables of the plane.

// readSpace parses a serialized XSpace. Some plugins append a zero byte, which is not a field.
func readSpace(space []byte) (*Profile, error) {
	p, err := readPlanes(space)
	if err != nil && space[len(space)-1] == 0 {
		p, err = readPlanes(space[:len(space)-1])
	}
	return p, err
}

func readPlanes(space []byte) (*Profile, error) {
	var r reader
	p := &Profile{}
	for number, plane := range r.fields(space) {
		if number == 1 {
			p.events = append(p.events, r.plane(plane.bytes)...)
		}
	}
	if r.err != nil {
		return nil, r.err
	}
	return p, nil
}

// reader reads serialized protobuf messages until an error.
type reader struct{ err error }

// wireField is a field's value: the bytes of a string or message, or an integer.
type wireField struct {
	bytes  []byte
	varint uint64
}

// fields yields the fields of a message by their numbers, in order.
func (r *reader) fields(message []byte) iter.Seq2[protowire.Number, wireField] {
	return func(yield func(protowire.Number, wireField) bool) {
		for r.err == nil && len(message) > 0 {
			var f wireField
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
				r.err = protowire.ParseError(n)
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
func (r *reader) entries(table [][]byte) iter.Seq2[uint64, iter.Seq2[protowire.Number, wireField]] {
	return func(yield func(uint64, iter.Seq2[protowire.Number, wireField]) bool) {
		for _, entry := range table {
			var key, value wireField
			for number, f := range r.fields(entry) {
				switch number {
				case 1:
					key = f
				case 2:
					value = f
				}
			}
			if !yield(key.varint, r.fields(value.bytes)) {
				return
			}
		}
	}
}

func (r *reader) plane(plane []byte) (events []event) {
	parts := map[protowire.Number][][]byte{} // of lines 3, kinds of events 4, and texts 5, in any order
	device := false
	for number, f := range r.fields(plane) {
		if parts[number] = append(parts[number], f.bytes); number == 2 {
			device = strings.HasPrefix(string(f.bytes), "/device:")
		}
	}
	texts := map[uint64]string{} // names of statistics, and what they refer to
	for key, value := range r.entries(parts[5]) {
		for number, f := range value {
			if number == 2 {
				texts[key] = string(f.bytes)
			}
		}
	}
	kinds := map[uint64]event{} // what events of a kind have in common
	for key, value := range r.entries(parts[4]) {
		kind := event{Device: device}
		for number, f := range value {
			if number == 5 {
				r.stat(&kind, f.bytes, texts)
			}
		}
		kinds[key] = kind
	}
	for _, line := range parts[3] {
		for number, f := range r.fields(line) {
			if number == 4 {
				e := r.event(f.bytes, kinds, texts)
				e.Device = device
				events = append(events, e)
			}
		}
	}
	return events
}

func (r *reader) event(message []byte, kinds map[uint64]event, texts map[uint64]string) event {
	var kind, picoseconds uint64
	var stats [][]byte
	for number, f := range r.fields(message) {
		switch number {
		case 1:
			kind = f.varint
		case 3:
			picoseconds = f.varint
		case 4:
			stats = append(stats, f.bytes)
		}
	}
	if int64(picoseconds) < 0 {
		r.err = errors.New("an event ends before it starts")
	}
	e := kinds[kind]
	e.Duration = time.Duration(picoseconds / 1000)
	for _, stat := range stats { // the event's own override its kind's
		r.stat(&e, stat, texts)
	}
	return e
}

// stat reads a statistic, if it names the operation of an event.
func (r *reader) stat(e *event, message []byte, texts map[uint64]string) {
	var name, value string
	for number, f := range r.fields(message) {
		switch number {
		case 1:
			name = texts[f.varint]
		case 5:
			value = string(f.bytes)
		case 7:
			value = texts[f.varint]
		}
	}
	switch name {
	case "hlo_op":
		e.Operation = value
	case "hlo_module":
		e.Module = value
	}
}
