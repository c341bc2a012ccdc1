package checkpoint

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
)

// entry is one array in a data file, at [Offsets[0], Offsets[1]) bytes after the header.
type entry struct {
	name    string
	DType   string  `json:"dtype"`
	Shape   []int   `json:"shape"`
	Offsets []int64 `json:"data_offsets"`
}

const (
	// metadataKey is the one name in a header that is not that of an array.
	metadataKey = "__metadata__"
	// maxHeader is the longest header that the reference implementation reads (MAX_HEADER_SIZE).
	maxHeader = 100_000_000
)

// encodeHeader returns what precedes the data, which begins at a multiple of 8 bytes.
func encodeHeader(entries []entry, metadata map[string]string) ([]byte, error) {
	object := map[string]any{metadataKey: metadata}
	for _, e := range entries {
		object[e.name] = e
	}
	text, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	for len(text)%8 != 0 {
		text = append(text, ' ')
	}
	if len(text) > maxHeader {
		return nil, fmt.Errorf("the header of %d arrays has %d bytes, a safetensors file allows %d: save "+
			"fewer tensors at once", len(entries), len(text), maxHeader)
	}
	return append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...), nil
}

// readHeader reads what precedes the data of a file of the given size, and returns its arrays in the order of their
// data, which must be contiguous.
func readHeader(r io.Reader, size int64) ([]entry, error) {
	var length [8]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, fmt.Errorf("no safetensors header: %w", err)
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n > maxHeader || int64(n) > size-8 {
		return nil, fmt.Errorf("a safetensors header of %d bytes in a file of %d: at most %d are possible", n, size,
			maxHeader)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return nil, fmt.Errorf("the safetensors header: %w", err)
	}
	entries, err := parseHeader(text)
	if err != nil {
		return nil, fmt.Errorf("the safetensors header: %w", err)
	}
	slices.SortStableFunc(entries, func(a, b entry) int { return slices.Compare(a.Offsets, b.Offsets) })
	at := int64(0)
	for _, e := range entries {
		if e.Offsets[0] != at {
			return nil, fmt.Errorf("the data of %q begins at %d, but the data before it ends at %d", e.name,
				e.Offsets[0], at)
		}
		at = e.Offsets[1]
	}
	if data := size - 8 - int64(n); at != data {
		return nil, fmt.Errorf("the arrays take %d bytes, but the file has %d for them", at, data)
	}
	return entries, nil
}

// parseHeader returns the header's arrays, each checked by itself, in the order of the text. It parses tokens because
// decoding into a map would let the second of two equal names replace the first.
func parseHeader(text []byte) ([]entry, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if token, err := decoder.Token(); err != nil || token != json.Delim('{') {
		return nil, errors.New("not a JSON object")
	}
	var entries []entry
	seen := map[string]bool{}
	for decoder.More() {
		token, err := decoder.Token()
		if err != nil {
			return nil, err
		}
		name := token.(string) // JSON keys are always strings
		if seen[name] {
			return nil, fmt.Errorf("%q is in it twice", name)
		}
		seen[name] = true
		if name == metadataKey {
			var metadata map[string]string
			if err := decoder.Decode(&metadata); err != nil {
				return nil, fmt.Errorf("%s: %w", metadataKey, err)
			}
			continue
		}
		e := entry{name: name}
		if err := decoder.Decode(&e); err != nil {
			return nil, fmt.Errorf("%q: %w", name, err)
		}
		if err := e.check(); err != nil {
			return nil, fmt.Errorf("%q: %w", name, err)
		}
		entries = append(entries, e)
	}
	if _, err := decoder.Token(); err != nil { // the closing brace
		return nil, err
	}
	if rest := bytes.TrimLeft(text[decoder.InputOffset():], " "); len(rest) > 0 {
		return nil, fmt.Errorf("%d bytes after the JSON object", len(rest))
	}
	return entries, nil
}

func (e entry) check() error {
	dtype, ok := byName[e.DType]
	if !ok || foreign(dtype) {
		return fmt.Errorf("unknown element type %q", e.DType)
	}
	if e.Shape == nil || len(e.Offsets) != 2 {
		return fmt.Errorf("shape %v and data_offsets %v: there must be a shape and two offsets", e.Shape, e.Offsets)
	}
	size, ok := byteSize(dtype, e.Shape)
	if !ok || e.Offsets[0] < 0 || e.Offsets[1] < e.Offsets[0] || e.Offsets[1]-e.Offsets[0] != size {
		return fmt.Errorf("%s of shape %v at bytes %v: its size is another", e.DType, e.Shape, e.Offsets)
	}
	return nil
}
