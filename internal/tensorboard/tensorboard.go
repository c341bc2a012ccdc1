// Package tensorboard writes event files of scalars for TensorBoard: records of the TFRecord format, each of which is
// an Event of TensorFlow's event.proto in the encoding of protocol buffers. (No maintained library in Go does.)
package tensorboard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// Scalar is a number of a step, under the name by which TensorBoard groups charts.
type Scalar struct {
	Tag   string
	Value float64
}

// Writer appends events to a file. The methods of nil do nothing.
type Writer struct{ file *os.File }

// Fields of the messages Event, SessionLog, Summary and Summary.Value.
const (
	eventTime, eventStep, eventVersion, eventSummary, eventSession protowire.Number = 1, 2, 3, 5, 7

	sessionStatus, sessionStart = protowire.Number(1), 1

	summaryValue, valueTag, valueScalar protowire.Number = 1, 1, 2
)

// Create makes the folder, if there is none, and a new event file in it. TensorBoard drops what earlier files have of
// the first step and later ones: a run that is resumed writes these again.
func Create(folder string, first int) (*Writer, error) {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	now := time.Now()
	name := fmt.Sprintf("events.out.tfevents.%d.%s.%d.%d", now.Unix(), host, os.Getpid(), now.Nanosecond())
	file, err := os.OpenFile(filepath.Join(folder, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	w := &Writer{file}
	version := protowire.AppendTag(nil, eventVersion, protowire.BytesType)
	version = protowire.AppendString(version, "brain.Event:2")
	session := protowire.AppendTag(nil, sessionStatus, protowire.VarintType)
	session = protowire.AppendVarint(session, sessionStart)
	if err := errors.Join(w.event(0, version), w.event(first, message(nil, eventSession, session))); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return w, nil
}

// Write writes the scalars of a step.
func (w *Writer) Write(step int, scalars ...Scalar) error {
	if w == nil {
		return nil
	}
	var summary []byte
	for _, s := range scalars {
		value := protowire.AppendTag(nil, valueTag, protowire.BytesType)
		value = protowire.AppendString(value, s.Tag)
		value = protowire.AppendTag(value, valueScalar, protowire.Fixed32Type)
		value = protowire.AppendFixed32(value, math.Float32bits(float32(s.Value)))
		summary = message(summary, summaryValue, value)
	}
	return w.event(step, message(nil, eventSummary, summary))
}

// Close closes the file.
func (w *Writer) Close() error {
	if w == nil {
		return nil
	}
	return w.file.Close()
}

// message appends a field that is a message.
func message(b []byte, field protowire.Number, content []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), content)
}

// event writes an Event of a step, with what it is of, as a record: its length, the length's checksum, it, its
// checksum.
func (w *Writer) event(step int, what []byte) error {
	event := protowire.AppendTag(nil, eventTime, protowire.Fixed64Type)
	event = protowire.AppendFixed64(event, math.Float64bits(float64(time.Now().UnixMicro())/1e6))
	event = protowire.AppendTag(event, eventStep, protowire.VarintType)
	event = append(protowire.AppendVarint(event, uint64(step)), what...)
	length := binary.LittleEndian.AppendUint64(nil, uint64(len(event)))
	record := append(binary.LittleEndian.AppendUint32(length, checksum(length)), event...)
	_, err := w.file.Write(binary.LittleEndian.AppendUint32(record, checksum(event)))
	return err
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum is the masked CRC-32C of TFRecord.
func checksum(data []byte) uint32 {
	crc := crc32.Checksum(data, castagnoli)
	return (crc>>15 | crc<<17) + 0xa282ead8
}
