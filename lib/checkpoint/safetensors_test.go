package checkpoint

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/params"
)

// handMade makes a checkpoint of one hand-built data file and a manifest with the given tensors.
func handMade(t *testing.T, data []byte, manifestTensors string) string {
	t.Helper()
	path := t.TempDir()
	sum := sha256.Sum256(data)
	inner := fmt.Sprintf(
		`{"format":1,"step":3,"meta":null,"files":[{"name":"d.safetensors","bytes":%d,"sha256":"%s"}],"tensors":[%s]}`,
		len(data), hex.EncodeToString(sum[:]), manifestTensors)
	for name, text := range map[string][]byte{"d.safetensors": data, manifestName: sealed(inner)} {
		must.Do(t, os.WriteFile(filepath.Join(path, name), text, 0o666))
	}
	return path
}

// A file built by hand from the format's description: arrays in another order than their data, odd offsets, any
// padding.
func TestReadsHandBuilt(t *testing.T) {
	header := `{"b":{"data_offsets":[1,9],"shape":[1,2],"dtype":"F32"},"__metadata__":{"format":"pt"},` +
		` "a":{"dtype":"BOOL","shape":[],"data_offsets":[0,1]}}   `
	data := "\x01" + "\x00\x00\x80\x3f" + "\x00\x00\x00\xc0" // true; 1 and -2 as IEEE 754 binary32
	path := handMade(t, handBuilt(header, data),
		`{"name":"a","dtype":"BOOL","shape":[],"pieces":[{"file":"d.safetensors","array":"a","start":[],"size":[]}]},`+
			`{"name":"weights","dtype":"F32","shape":[1,2],"pieces":[{"file":"d.safetensors","array":"b",`+
			`"start":[0,0],"size":[1,2]}]}`)
	values := must.Get(openAndRead(t, path))(t)
	if values[0].Value() != true || !reflect.DeepEqual(values[1].Value(), [][]float32{{1, -2}}) {
		t.Errorf("values %v", values)
	}
}

// A valid file and a valid manifest that differ.
func TestFileAgainstManifest(t *testing.T) {
	const manifest = `{"name":"w","dtype":"U16","shape":[2],"pieces":[{"file":"d.safetensors","array":"w",` +
		`"start":[0],"size":[2]}]}`
	for _, c := range []struct{ header, data, want string }{
		{`{"v":{"dtype":"U16","shape":[2],"data_offsets":[0,4]}}`, "1234", `array "v" that is not in the manifest`},
		{`{"w":{"dtype":"I16","shape":[2],"data_offsets":[0,4]}}`, "1234",
			`array "w" is I16 [2], but the manifest says U16 [2]`},
		{`{"w":{"dtype":"U16","shape":[2,1],"data_offsets":[0,4]}}`, "1234", `array "w" is U16 [2 1]`},
		{`{"w":{"dtype":"U16","shape":[2],"data_offsets":[0,4]},"v":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`,
			"1234", "2 arrays"},
		{`{}`, "", "0 arrays, but the manifest says 1"},
	} {
		_, err := openAndRead(t, handMade(t, handBuilt(c.header+"     ", c.data), manifest))
		wantError(t, c.want, err, "d.safetensors", c.want)
	}
	_, err := openAndRead(t, handMade(t, handBuilt(`{"w":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}}  `,
		"\x01\x02"),
		strings.Replace(manifest, "U16", "BOOL", 1)))
	wantError(t, "a boolean that is none", err, `"w"`, "element 1 of the booleans is 2")
}

// A reader that knows only the format's description reads what Save writes.
func TestReadByOthers(t *testing.T) {
	tree := append(allTypes(3), params.New("<&>", dtypes.Float16, 2, 5))
	values := make([]*tensors.Tensor, len(tree))
	for i, spec := range tree {
		values[i] = random(t, rand.New(rand.NewPCG(7, uint64(i))), spec)
	}
	path := must.Get(Save(t.Context(), t.TempDir(), 42, nil, tree, values, 0))(t)
	text := must.Get(os.ReadFile(filepath.Join(path, dataName)))(t)
	n := binary.LittleEndian.Uint64(text)
	if n%8 != 0 || text[8] != '{' {
		t.Errorf("a header of %d bytes that begins with %q", n, text[8])
	}
	var header map[string]map[string]any
	must.Do(t, json.Unmarshal(text[8:8+n], &header))
	if got := header["__metadata__"]; !reflect.DeepEqual(got, map[string]any{"step": "42"}) ||
		len(header) != len(tree)+1 {
		t.Errorf("%d arrays, metadata %v", len(header)-1, got)
	}
	// The names in the reference implementation's enum Dtype, and the types that stand for those that it lacks.
	types := map[dtypes.DType]string{
		dtypes.Bool: "BOOL", dtypes.Uint8: "U8", dtypes.Int8: "I8", dtypes.Int16: "I16", dtypes.Uint16: "U16",
		dtypes.Float16: "F16", dtypes.BFloat16: "BF16", dtypes.Int32: "I32", dtypes.Uint32: "U32",
		dtypes.Float32:   "F32",
		dtypes.Complex64: "C64", dtypes.Float64: "F64", dtypes.Int64: "I64", dtypes.Uint64: "U64",
	}
	used := 0.0
	for i, spec := range tree {
		array := header[spec.Name]
		wantType, wantShape := types[spec.Shape.DType], []any{}
		for _, d := range spec.Shape.Dimensions {
			wantShape = append(wantShape, float64(d))
		}
		if wantType == "" {
			wantType, wantShape = "U8", []any{float64(len(bytesOf(t, values[i])))}
		}
		offsets := array["data_offsets"].([]any)
		begin, end := offsets[0].(float64), offsets[1].(float64)
		used += end - begin
		if array["dtype"] != wantType || !reflect.DeepEqual(array["shape"], wantShape) || len(array) != 3 ||
			!bytes.Equal(text[8+n:][int(begin):int(end)], bytesOf(t, values[i])) {
			t.Errorf("%s: header %v, want %s %v", spec, array, wantType, wantShape)
		}
		if !spec.Shape.DType.IsPacked() && int(begin)%min(8, spec.Shape.DType.Size()) != 0 {
			t.Errorf("%s begins at %v", spec, begin)
		}
	}
	if 8+float64(n)+used != float64(len(text)) {
		t.Errorf("the arrays have %v bytes of %d", used, len(text))
	}
}

func TestHeaderRefuses(t *testing.T) {
	const good = `{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},` +
		`"v":{"dtype":"U8","shape":[0],"data_offsets":[8,8]}}`
	read := func(text []byte) ([]entry, error) { return readHeader(bytes.NewReader(text), int64(len(text))) }
	if entries, err := read(handBuilt(good, "12345678")); err != nil || len(entries) != 2 || entries[0].name != "w" {
		t.Fatalf("%v, %v", entries, err)
	}
	for _, c := range []struct{ old, new, want string }{
		{`"F32"`, `"F33"`, `"w": unknown element type "F33"`},
		{`"F32"`, `"C128"`, `unknown element type "C128"`}, // ours, not safetensors'
		{`"F32"`, `32`, `"w": json`},
		{`[2]`, `[3]`, "its size is another"},
		{`[2]`, `[-2]`, "its size is another"},
		{`[2]`, `[2.5]`, "2.5"},
		{`[2]`, `[9223372036854775807,2]`, "its size is another"},
		{`"shape":[2],`, ``, "there must be a shape"},
		{`[2]`, `null`, "there must be a shape"},
		{`[0,8]`, `[0]`, "two offsets"},
		{`[0,8]`, `[0,8,8]`, "two offsets"},
		{`[0,8]`, `[1,9]`, `"w" begins at 1, but the data before it ends at 0`},
		{`[8,8]`, `[9,9]`, `"v" begins at 9, but the data before it ends at 8`},
		{`[0,8]`, `[-8,0]`, "its size is another"},
		{`[0,8]`, `[9223372036854775800,-9223372036854775808]`, "its size is another"},
		{`"v"`, `"w"`, `"w" is in it twice`},
		{`"v":{"dtype":"U8","shape":[0],"data_offsets":[8,8]}`, `"v":{"dtype":"U8","shape":[1],"data_offsets":[8,9]}`,
			"take 9 bytes, but the file has 8"},
		{`"w":{"dtype"`, `"w":{"more":1,"dtype"`, "more"},
		{`"w":{`, `"__metadata__":{"a":1},"w":{`, "__metadata__"},
		{`"w":{`, `"__metadata__":{},"__metadata__":{},"w":{`, `"__metadata__" is in it twice`},
		{`]}}`, `]}} x`, "after the JSON object"},
		{`]}}`, `]}`, "EOF"},
		{`{"w"`, `[{"w"`, "not a JSON object"},
		{good, ``, "not a JSON object"},
	} {
		bad := strings.Replace(good, c.old, c.new, 1)
		if bad == good {
			t.Fatalf("%q is not in the header", c.old)
		}
		if _, err := read(handBuilt(bad, "12345678")); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s for %s: error %v lacks %q", c.new, c.old, err, c.want)
		}
	}
	for n, want := range map[uint64]string{
		1000: "1000 bytes in a file of 16", 9: "9 bytes in a file", 1 << 63: "9223372036854775808 bytes",
		1<<64 - 1:     "at most",
		maxHeader + 1: "at most 100000000",
	} {
		_, err := read(append(binary.LittleEndian.AppendUint64(nil, n), "12345678"...))
		must.Refuse(t, n, err, want)
	}
}

// FuzzHeader: any bytes are an error, or arrays that fill the file without gaps.
func FuzzHeader(f *testing.F) {
	f.Add(handBuilt(`{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}  `, "12345678"))
	f.Add(handBuilt(`{"__metadata__":{"a":"b"},"w":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}`, "1"))
	f.Add([]byte("\xff\xff\xff\xff\xff\xff\xff\xff{}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		entries, err := readHeader(bytes.NewReader(text), int64(len(text)))
		if err != nil {
			return
		}
		data := int64(len(text)) - 8 - int64(binary.LittleEndian.Uint64(text))
		for _, e := range entries {
			size, ok := byteSize(byName[e.DType], e.Shape)
			if data -= size; !ok || size != e.Offsets[1]-e.Offsets[0] {
				t.Fatalf("%v was let through", e)
			}
		}
		if data != 0 {
			t.Fatalf("%d bytes are in no array of %v", data, entries)
		}
	})
}
