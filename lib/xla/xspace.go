package xla

import (
	"errors"
	"math"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// A profile is an XSpace of xplane.proto: planes (devices, the host) of lines (streams, threads) of events. Names are
// in numbered tables of the plane.

// readSpace parses a serialized XSpace. Some plugins append a zero byte, which is not a field.
func readSpace(space []byte) (*Profile, error) {
	p := &Profile{}
	err := eachField(withoutEnd(space), func(f wireField) error {
		if f.number != 1 {
			return nil
		}
		return p.readPlane(f.bytes)
	})
	if err != nil {
		return nil, err
	}
	// XLA's times count from 1970 or from the profile's start.
	first := time.Duration(math.MaxInt64)
	for _, e := range p.events {
		first = min(first, e.Start)
	}
	for i := range p.events {
		p.events[i].Start -= first
	}
	return p, nil
}

// withoutEnd removes a zero byte that is not part of the last field.
func withoutEnd(space []byte) []byte {
	for rest := space; len(rest) > 0; {
		if len(rest) == 1 && rest[0] == 0 {
			return space[:len(space)-1]
		}
		_, _, n := protowire.ConsumeField(rest)
		if n < 0 {
			break
		}
		rest = rest[n:]
	}
	return space
}

// plane is an XPlane's name and tables.
type plane struct {
	name  string
	texts map[int64]string // names of statistics, and what they refer to
	kinds map[int64]event  // what events of a kind have in common
}

func (p *Profile) readPlane(bytes []byte) error {
	from := plane{texts: map[int64]string{}, kinds: map[int64]event{}}
	var kinds, lines [][]byte // parsed after the tables that they refer to
	err := eachField(bytes, func(f wireField) error {
		switch f.number {
		case 2:
			from.name = string(f.bytes)
		case 3:
			lines = append(lines, f.bytes)
		case 4:
			kinds = append(kinds, f.bytes)
		case 5:
			return eachEntry(f.bytes, func(key int64, f wireField) error {
				if f.number == 2 {
					from.texts[key] = string(f.bytes)
				}
				return nil
			})
		}
		return nil
	})
	for _, kind := range kinds {
		if err == nil {
			err = from.readKind(kind)
		}
	}
	for _, line := range lines {
		if err == nil {
			err = p.readLine(line, &from)
		}
	}
	return err
}

// readKind reads an entry of the table of XEventMetadata.
func (p *plane) readKind(bytes []byte) error {
	return eachEntry(bytes, func(key int64, f wireField) (err error) {
		kind := p.kinds[key]
		switch f.number {
		case 2:
			kind.Name = string(f.bytes)
		case 5:
			err = kind.readStat(f.bytes, p.texts)
		}
		p.kinds[key] = kind
		return err
	})
}

func (p *Profile) readLine(bytes []byte, from *plane) error {
	var name string
	var nanoseconds int64
	var events [][]byte
	err := eachField(bytes, func(f wireField) error {
		switch f.number {
		case 2:
			name = string(f.bytes)
		case 3:
			nanoseconds = int64(f.varint)
		case 4:
			events = append(events, f.bytes)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, bytes := range events {
		e, err := from.readEvent(bytes, time.Duration(nanoseconds))
		if err != nil {
			return err
		}
		e.Plane, e.Line = from.name, name
		p.events = append(p.events, e)
	}
	return nil
}

func (p *plane) readEvent(bytes []byte, line time.Duration) (event, error) {
	const nanosecond = 1000 // picoseconds
	var kind, start, duration int64
	var stats [][]byte
	err := eachField(bytes, func(f wireField) error {
		switch f.number {
		case 1:
			kind = int64(f.varint)
		case 2:
			start = int64(f.varint)
		case 3:
			duration = int64(f.varint)
		case 4:
			stats = append(stats, f.bytes)
		}
		return nil
	})
	if err == nil && duration < 0 {
		err = errors.New("an event ends before it starts")
	}
	e := p.kinds[kind]
	e.Start, e.Duration = line+time.Duration(start/nanosecond), time.Duration(duration/nanosecond)
	for _, stat := range stats { // the event's own override its kind's
		if err == nil {
			err = e.readStat(stat, p.texts)
		}
	}
	return e, err
}

// readStat reads the statistics that name the operation of an event.
func (e *event) readStat(bytes []byte, texts map[int64]string) error {
	var name, value string
	err := eachField(bytes, func(f wireField) error {
		switch f.number {
		case 1:
			name = texts[int64(f.varint)]
		case 5:
			value = string(f.bytes)
		case 7:
			value = texts[int64(f.varint)]
		}
		return nil
	})
	switch name {
	case "hlo_op":
		e.Operation = value
	case "hlo_module":
		e.Module = value
	}
	return err
}
