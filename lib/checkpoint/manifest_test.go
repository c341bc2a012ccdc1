package checkpoint

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
)

// sealed returns the file of a forged manifest, with the right checksum.
func sealed(inner string) []byte {
	sum := sha256.Sum256([]byte(inner))
	return []byte(`{"sha256":"` + hex.EncodeToString(sum[:]) + `","manifest":` + inner + "}\n")
}

var someSum = strings.Repeat("0a", sha256.Size)

var (
	goodFile   = `{"name":"d.safetensors","bytes":100,"sha256":"` + someSum + `"}`
	goodTensor = `{"name":"w","dtype":"F32","shape":[2,3],"pieces":[{"file":"d.safetensors","array":"w",` +
		`"start":[0,0],"size":[2,3]}]}`
	goodInner = `{"format":1,"step":3,"meta":null,"files":[` + goodFile + `],"tensors":[` + goodTensor + `]}`
)

// Inconsistent manifests with the right checksum.
func TestManifestRefuses(t *testing.T) {
	must.Get(parseManifest(sealed(goodInner)))(t)
	for _, c := range []struct{ old, new, want string }{
		{`"format":1`, `"format":2`, "format 2, but this program reads format 1: use the program"},
		{`"format":1,`, ``, "format 0"},
		{`"format":1`, `"format":"1"`, "string"},
		{`"step":3`, `"step":-3`, "step -3"},
		{`"step":3`, `"step":3.5`, "3.5"},
		{`"step":3`, `"step":99999999999999999999`, "99999999999999999999"},
		{`"meta":null,`, ``, "metadata"},
		{`"meta":null`, `"meta":null,"more":1`, "more"},
		{`]}]}]}`, `]}]}]}{}`, "after top-level value"},
		{goodInner, `[]`, "cannot unmarshal array"},
		{goodFile, goodFile + "," + goodFile, "listed twice"},
		{goodFile, ``, `is in file "d.safetensors", which is missing`},
		{`"name":"d.safetensors"`, `"name":"../d.safetensors"`, `"../d.safetensors" is not a data file's name`},
		{`"name":"d.safetensors"`, `"name":"/d.safetensors"`, "not a data file's name"},
		{`"name":"d.safetensors"`, `"name":"x/d.safetensors"`, "not a data file's name"},
		{`"name":"d.safetensors"`, `"name":"x\\d.safetensors"`, "not a data file's name"},
		{`"name":"d.safetensors"`, `"name":"manifest.json"`, "not a data file's name"},
		{`"name":"d.safetensors"`, `"name":""`, "not a data file's name"},
		{`"bytes":100`, `"bytes":-1`, "size -1"},
		{`"bytes":100`, `"bytes":23`, "a piece of 24 bytes"},
		{someSum, someSum[2:], "SHA-256"},
		{someSum, "zz" + someSum[2:], "SHA-256"},
		{goodTensor, goodTensor + "," + goodTensor, `named "w"`},
		{goodTensor, goodTensor + "," + strings.Replace(goodTensor, `"w"`, `"v"`, 1),
			`array "w" of "d.safetensors" is used twice`},
		{`"name":"w"`, `"name":""`, `named ""`},
		{`"F32"`, `"F8_E4M3"`, `"F8_E4M3"`},
		{`"F32"`, `"Float32"`, `"Float32"`},
		{`"F32","shape":[2,3]`, `"F32","shape":[2,-3]`, "[2 -3]"},
		{`"F32","shape":[2,3]`, `"F32","shape":[2,0]`, "[2 0]"},
		{`"F32","shape":[2,3]`, `"F32","shape":[4611686018427387904,4611686018427387904]`, "impossible shape"},
		{`"F32","shape":[2,3]`, `"F32","shape":[2,3,1]`, "start [0 0]"},
		{`"start":[0,0]`, `"start":[0]`, "start [0]"},
		{`"start":[0,0]`, `"start":[0,1]`, "start [0 1]"},
		{`"start":[0,0]`, `"start":[-1,0]`, "start [-1 0]"},
		{`"start":[0,0],"size":[2,3]`, `"start":[1,0],"size":[9223372036854775807,3]`, "start [1 0]"},
		{`"start":[0,0],"size":[2,3]`, `"start":[0,0],"size":[1,3]`, "1 pieces do not cover"},
		{`"start":[0,0],"size":[2,3]`, `"start":[0,0],"size":[2,0]`, "size [2 0]"},
		{`"F32","shape":[2,3],"pieces":[{"file":"d.safetensors","array":"w","start":[0,0],"size":[2,3]}`,
			`"I4","shape":[2,3],"pieces":[{"file":"d.safetensors","array":"w","start":[0,0],"size":[1,3]}`,
			"cannot be stored in pieces"},
		{`[{"file":"d.safetensors","array":"w","start":[0,0],"size":[2,3]}]`, `[]`, "0 pieces"},
	} {
		inner := strings.Replace(goodInner, c.old, c.new, 1)
		if inner == goodInner {
			t.Fatalf("%q is not in the manifest", c.old)
		}
		_, err := parseManifest(sealed(inner))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s for %s: error %v lacks %q", c.new, c.old, err, c.want)
		}
	}
}

// A forged manifest can neither lead out of the folder nor allocate more memory than the files have bytes.
func TestForged(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "forged")
	must.Do(t, os.Mkdir(path, 0o777))
	for _, c := range []struct{ inner, want string }{
		{strings.Replace(goodInner, `"name":"d.`, `"name":"../d.`, 1), "not a data file's name"},
		{goodInner, "d.safetensors is missing"},
		{strings.NewReplacer("[2,3]", "[1048576,1048576]", `"bytes":100`, `"bytes":4398046511200`).Replace(goodInner),
			"is missing"},
		{strings.Replace(goodInner, "[2,3]", "[1048576,1048576]", 2), "too small"},
	} {
		must.Do(t, os.WriteFile(filepath.Join(path, manifestName), sealed(c.inner), 0o666))
		_, err := Open(path)
		wantError(t, c.want, err, filepath.Join(path), c.want)
		if errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v: a checkpoint with a manifest is there", err)
		}
	}
}

// FuzzManifest: any bytes are an error or a manifest that is encoded to the same bytes, and need no more memory or time
// than their length explains.
func FuzzManifest(f *testing.F) {
	f.Add([]byte(goodInner))
	f.Add([]byte(strings.Replace(goodInner, "[0,0]", "[9223372036854775807,0]", 1)))
	f.Add([]byte(`{"format":1,"step":0,"meta":{},"files":[],"tensors":[]}`))
	f.Fuzz(func(t *testing.T, inner []byte) {
		if m, err := parseManifest(inner); err == nil {
			t.Fatalf("with no checksum: %v", m)
		}
		m, err := parseManifest(sealed(string(inner)))
		if err != nil {
			return
		}
		text := must.Get(m.encode())(t)
		again, err := parseManifest(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if a, b := asJSON(t, m), asJSON(t, again); a != b {
			t.Fatalf("%s\nwas read again as\n%s", a, b)
		}
		var bytes, sum int64
		for _, file := range m.Files {
			bytes += file.Bytes
		}
		for _, tensor := range m.Tensors {
			n, ok := byteSize(tensor.dtype(), tensor.Shape)
			if sum += n; !ok {
				t.Fatalf("%v was let through", tensor)
			}
		}
		if bytes >= 0 && sum > bytes { // bytes may overflow here; no disk has that many
			t.Fatalf("tensors of %d bytes in files of %d: %s", sum, bytes, text)
		}
	})
}

func asJSON(t *testing.T, m manifest) string {
	t.Helper()
	text := must.Get(json.Marshal(m))(t)
	return string(text)
}

// handBuilt builds a data file by the published format: the header's length as 8 bytes, the header, the data.
func handBuilt(header string, data string) []byte {
	return append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header+data...)
}
