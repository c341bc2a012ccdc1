package notebook

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"reflect"
	"testing"
	"time"

	"github.com/gomlx/gomlx/core/tensors"
)

type sample struct {
	Count  int
	Name   string
	Flags  []bool
	Series map[string][]float32
	Next   *sample
	When   time.Time
	Empty  []struct{}
	Tensor *tensors.Tensor
	Layers []*tensors.Tensor
}

// samples are values of every kind; each is a type of its own to decode into.
func samples() []any {
	return []any{
		3, "text", []float64{1, 2}, map[bool]string{true: "yes"}, tensors.FromValue([]bool{true, false}),
		tensors.FromValue(int8(1)),
		sample{
			Count: 1, Name: "name", Flags: []bool{true}, Series: map[string][]float32{"a": {1, 2, 3}},
			Next: &sample{}, When: time.Unix(1, 2), Empty: make([]struct{}, 3),
			Tensor: tensors.FromValue([][]float32{{1, 2}, {3, 4}}), Layers: []*tensors.Tensor{nil},
		},
	}
}

func encoded(t testing.TB, value any) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := encodeFile(&b, reflect.ValueOf(value)); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// summed returns data, less its checksum, with a checksum that fits.
func summed(data []byte) []byte {
	data = data[:max(0, len(data)-crc32.Size)]
	return binary.LittleEndian.AppendUint32(bytes.Clone(data), crc32.Checksum(data, castagnoli))
}

func TestDamagedFiles(t *testing.T) {
	for _, value := range samples() {
		whole := encoded(t, value)
		decode := func(data []byte) error { return decodeFile(data, reflect.New(reflect.TypeOf(value)).Elem()) }
		if err := decode(whole); err != nil {
			t.Fatal(err)
		}
		for i := range whole {
			if err := decode(whole[:i]); !errors.Is(err, errDamaged) {
				t.Fatalf("%T cut to %d of %d bytes: %v", value, i, len(whole), err)
			}
			changed := bytes.Clone(whole)
			changed[i] ^= 0x10
			if err := decode(changed); !errors.Is(err, errDamaged) {
				t.Fatalf("%T with byte %d changed: %v", value, i, err)
			}
			// With a checksum that fits, it is the decoder that must notice the missing bytes.
			if i < len(whole)-crc32.Size {
				if err := decode(summed(append(bytes.Clone(whole[:i]), 0, 0, 0, 0))); err == nil {
					t.Fatalf("%T cut to %d bytes and summed again: no error", value, i)
				}
			}
		}
		if err := decode(summed(append(bytes.Clone(whole), 0))); err == nil {
			t.Fatalf("%T with more bytes behind: no error", value)
		}
	}
}

// FuzzKept decodes files that Keep never wrote: that may give an error or a value that can be kept again, but no panic.
func FuzzKept(f *testing.F) {
	for _, value := range samples() {
		f.Add(encoded(f, value))
	}
	f.Add([]byte(nil))
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, value := range samples() {
			for _, file := range [][]byte{data, summed(data)} {
				into := reflect.New(reflect.TypeOf(value)).Elem()
				if err := decodeFile(file, into); err != nil {
					continue
				}
				var again bytes.Buffer
				if err := encodeFile(&again, into); err != nil {
					t.Errorf("a %T that was read cannot be kept: %v", value, err)
				}
			}
		}
	})
}
