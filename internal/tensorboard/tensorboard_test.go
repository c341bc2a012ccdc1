package tensorboard_test

import (
	"encoding/binary"
	"math"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/tensorboard"
)

// crc32c is the checksum bit by bit, from its polynomial.
func crc32c(data []byte) uint32 {
	crc := ^uint32(0)
	for _, b := range data {
		crc ^= uint32(b)
		for range 8 {
			crc = crc>>1 ^ 0x82f63b78*(crc&1)
		}
	}
	return ^crc
}

// masked is https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/lib/hash/crc32c.h.
func masked(data []byte) uint32 { return bits.RotateLeft32(crc32c(data), -15) + 0xa282ead8 }

// records reads the records of a TFRecord file and checks their checksums.
func records(t *testing.T, data []byte) (all [][]byte) {
	t.Helper()
	for len(data) > 0 {
		n := binary.LittleEndian.Uint64(data)
		record := data[12 : 12+n]
		if binary.LittleEndian.Uint32(data[8:]) != masked(data[:8]) ||
			binary.LittleEndian.Uint32(data[12+n:]) != masked(record) {
			t.Fatalf("record %d has another checksum", len(all))
		}
		all = append(all, record)
		data = data[16+n:]
	}
	return all
}

// field is a field of a message, and its value: of its wire type 0, 1 and 5 the number, of 2 the bytes.
type field struct {
	id    uint64
	n     uint64
	bytes []byte
}

// fields reads a message by the encoding that https://protobuf.dev/programming-guides/encoding describes.
func fields(t *testing.T, data []byte) (all []field) {
	t.Helper()
	varint := func() uint64 {
		n, size := binary.Uvarint(data)
		data = data[size:]
		return n
	}
	for len(data) > 0 {
		key := varint()
		f := field{id: key >> 3}
		switch key & 7 {
		case 0:
			f.n = varint()
		case 1:
			f.n, data = binary.LittleEndian.Uint64(data), data[8:]
		case 2:
			n := varint()
			f.bytes, data = data[:n], data[n:]
		case 5:
			f.n, data = uint64(binary.LittleEndian.Uint32(data)), data[4:]
		default:
			t.Fatalf("wire type %d", key&7)
		}
		all = append(all, f)
	}
	return all
}

// TestWriter reads an event file by the definitions of its format: TFRecord, event.proto and summary.proto.
func TestWriter(t *testing.T) {
	if crc := crc32c([]byte("123456789")); crc != 0xe3069283 { // the check value of CRC-32C
		t.Fatalf("%x", crc)
	}
	folder := filepath.Join(t.TempDir(), "new", "run")
	before := float64(time.Now().UnixMicro()) / 1e6
	w, err := tensorboard.Create(folder, 7)
	if err != nil {
		t.Fatal(err)
	}
	want := []tensorboard.Scalar{{Tag: "loss", Value: 5.5}, {Tag: "memory/bytes", Value: 1 << 30}}
	if err := w.Write(300, want...); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(folder, "events.out.tfevents.*"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	data, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	all := records(t, data)
	if len(all) != 3 {
		t.Fatalf("%d records", len(all))
	}
	for i, step := range []uint64{0, 7, 300} {
		event := fields(t, all[i])
		at := math.Float64frombits(event[0].n)
		if len(event) != 3 || event[0].id != 1 || at < before || at > before+60 || event[1].id != 2 ||
			event[1].n != step {
			t.Errorf("event %d: %v", i, event)
		}
		switch what := event[2]; i {
		case 0:
			if what.id != 3 || string(what.bytes) != "brain.Event:2" {
				t.Errorf("version %v", what)
			}
		case 1: // the start of a session, from which on TensorBoard drops older events
			if what.id != 7 || !slices.Equal(what.bytes, []byte{1 << 3, 1}) {
				t.Errorf("session %v", what)
			}
		case 2:
			var got []tensorboard.Scalar
			for _, value := range fields(t, what.bytes) {
				scalar := fields(t, value.bytes)
				if what.id != 5 || value.id != 1 || len(scalar) != 2 || scalar[0].id != 1 || scalar[1].id != 2 {
					t.Fatalf("value %v", scalar)
				}
				number := float64(math.Float32frombits(uint32(scalar[1].n)))
				got = append(got, tensorboard.Scalar{Tag: string(scalar[0].bytes), Value: number})
			}
			if !slices.Equal(got, want) {
				t.Errorf("%v, want %v", got, want)
			}
		}
	}
	if err := (*tensorboard.Writer)(nil).Write(1); err != nil {
		t.Error(err)
	}
}
