package tensorboard_test

import (
	"encoding/binary"
	"hash/crc32"
	"math"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/tensorboard"
)

// masked is https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/lib/hash/crc32c.h.
func masked(data []byte) uint32 {
	return bits.RotateLeft32(crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli)), -15) + 0xa282ead8
}

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

// take takes the next field of a message, which must have this number: a number, or the bytes of a text or message.
func take(t *testing.T, message *[]byte, want protowire.Number) (number uint64, bytes []byte) {
	t.Helper()
	field, kind, n := protowire.ConsumeTag(*message)
	if field != want {
		t.Fatalf("field %d, want %d", field, want)
	}
	*message = (*message)[n:]
	switch kind {
	case protowire.VarintType:
		number, n = protowire.ConsumeVarint(*message)
	case protowire.Fixed64Type:
		number, n = protowire.ConsumeFixed64(*message)
	case protowire.Fixed32Type:
		var short uint32
		short, n = protowire.ConsumeFixed32(*message)
		number = uint64(short)
	default:
		bytes, n = protowire.ConsumeBytes(*message)
	}
	*message = (*message)[n:]
	return number, bytes
}

// TestWriter reads an event file by the definitions of its format: TFRecord, event.proto and summary.proto.
func TestWriter(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "new", "run")
	before := float64(time.Now().UnixMicro()) / 1e6
	w, err := tensorboard.Create(folder, 7)
	must.Do(t, err)
	want := []tensorboard.Scalar{{Tag: "loss", Value: 5.5}, {Tag: "memory/bytes", Value: 1 << 30}}
	must.Do(t, w.Write(300, want...))
	must.Do(t, w.Close())
	files, err := filepath.Glob(filepath.Join(folder, "events.out.tfevents.*"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	data := must.Get(os.ReadFile(files[0]))(t)
	all := records(t, data)
	if len(all) != 3 {
		t.Fatalf("%d records", len(all))
	}
	for i, want := range []uint64{0, 7, 300} {
		number, _ := take(t, &all[i], 1)
		step, _ := take(t, &all[i], 2)
		if at := math.Float64frombits(number); at < before || at > before+60 || step != want {
			t.Errorf("event %d at %v, of step %d, want %d", i, at, step, want)
		}
	}
	if _, version := take(t, &all[0], 3); string(version) != "brain.Event:2" {
		t.Errorf("version %q", version)
	}
	// The start of a session, from which on TensorBoard drops older events.
	if _, session := take(t, &all[1], 7); !slices.Equal(session, []byte{1 << 3, 1}) {
		t.Errorf("session %v", session)
	}
	var got []tensorboard.Scalar
	for _, summary := take(t, &all[2], 5); len(summary) > 0; {
		_, value := take(t, &summary, 1)
		_, tag := take(t, &value, 1)
		number, _ := take(t, &value, 2)
		got = append(got, tensorboard.Scalar{Tag: string(tag), Value: float64(math.Float32frombits(uint32(number)))})
	}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if rest := slices.Concat(all...); len(rest) > 0 {
		t.Errorf("more fields: %v", rest)
	}
	if err := (*tensorboard.Writer)(nil).Write(1); err != nil {
		t.Error(err)
	}
}
