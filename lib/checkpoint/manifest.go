package checkpoint

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gomlx/compute/dtypes"

	"github.com/shardbook/shardbook/lib/params"
)

const (
	manifestName = "manifest.json"
	dataSuffix   = ".safetensors"
	format       = 1
	// maxManifest limits the memory for reading one; it is enough for some hundred thousand pieces.
	maxManifest = 64 << 20
)

// manifest describes a checkpoint's data files.
type manifest struct {
	Format  int             `json:"format"`
	Step    int             `json:"step"`
	Meta    json.RawMessage `json:"meta"`
	Files   []file          `json:"files"`
	Tensors []tensor        `json:"tensors"`
}

type file struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// tensor is a full tensor, and the pieces that tile it.
type tensor struct {
	Name   string  `json:"name"`
	DType  string  `json:"dtype"`
	Shape  []int   `json:"shape"`
	Pieces []piece `json:"pieces"`
}

// piece is a box of a tensor: the elements from Start[axis] to before Start[axis]+Size[axis] on every axis, in
// row-major order. It is stored in the file's array of that name.
type piece struct {
	File  string `json:"file"`
	Array string `json:"array"`
	Start []int  `json:"start"`
	Size  []int  `json:"size"`
}

// describe describes a tensor without pieces.
func describe(spec params.Spec) tensor {
	// The shape is not nil, which would be null in the manifest.
	return tensor{Name: spec.Name, DType: names[spec.Shape.DType], Shape: append([]int{}, spec.Shape.Dimensions...)}
}

func (t tensor) dtype() dtypes.DType { return byName[t.DType] }

// full reports whether the piece is the full tensor.
func (t tensor) full(p piece) bool { return slices.Equal(p.Size, t.Shape) }

// A manifest file is the checksum and the manifest between these three.
const before, between, after = `{"sha256":"`, `","manifest":`, "}\n"

func (m *manifest) encode() ([]byte, error) {
	text, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	text = slices.Concat([]byte(before), []byte(hex.EncodeToString(sum[:])), []byte(between), text, []byte(after))
	if len(text) > maxManifest {
		return nil, fmt.Errorf("the manifest has %d bytes, at most %d are possible: save less metadata or fewer "+
			"tensors", len(text), maxManifest)
	}
	return text, nil
}

// parseManifest verifies and decodes a manifest file.
func parseManifest(text []byte) (m manifest, err error) {
	const sumEnd = len(before) + 2*sha256.Size
	if len(text) < sumEnd {
		return m, fmt.Errorf("not a manifest: %d bytes; %s", len(text), remedy)
	}
	inner, ok1 := bytes.CutPrefix(text[sumEnd:], []byte(between))
	inner, ok2 := bytes.CutSuffix(inner, []byte(after))
	sum := sha256.Sum256(inner)
	if !ok1 || !ok2 || string(text[:sumEnd]) != before+hex.EncodeToString(sum[:]) {
		return m, errors.New("its checksum does not match: " + remedy)
	}
	var version struct{ Format int }
	if err := json.Unmarshal(inner, &version); err != nil {
		return m, err
	}
	if version.Format != format {
		return m, fmt.Errorf("it has format %d, but this program reads format %d: use the program that wrote it",
			version.Format, format)
	}
	decoder := json.NewDecoder(bytes.NewReader(inner))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&m); err != nil {
		return m, err
	}
	return m, m.check()
}

// check returns an error if the manifest is inconsistent.
func (m *manifest) check() error {
	if m.Step < 0 || len(m.Meta) == 0 {
		return fmt.Errorf("step %d and metadata %q: both must be set", m.Step, m.Meta)
	}
	room := map[string]int64{}
	for _, f := range m.Files {
		if err := f.check(); err != nil {
			return err
		}
		if _, twice := room[f.Name]; twice {
			return fmt.Errorf("file %q is listed twice", f.Name)
		}
		room[f.Name] = f.Bytes
	}
	tensors, arrays := map[string]bool{}, map[[2]string]bool{}
	for _, t := range m.Tensors {
		if t.Name == "" || tensors[t.Name] {
			return fmt.Errorf("a tensor is named %q: names must be unique and not empty", t.Name)
		}
		tensors[t.Name] = true
		if err := t.check(); err != nil {
			return fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		for _, p := range t.Pieces {
			free, ok := room[p.File]
			n, _ := byteSize(t.dtype(), p.Size)
			if !ok || n > free { // so that reading never takes more memory than the files have bytes
				return fmt.Errorf("tensor %q: a piece of %d bytes is in file %q, which is missing or too small",
					t.Name, n, p.File)
			}
			room[p.File] = free - n
			if array := [2]string{p.File, p.Array}; arrays[array] {
				return fmt.Errorf("tensor %q: array %q of %q is used twice", t.Name, p.Array, p.File)
			} else {
				arrays[array] = true
			}
		}
	}
	return nil
}

// check also rejects names that lead out of the checkpoint's folder.
func (f file) check() error {
	if !strings.HasSuffix(f.Name, dataSuffix) || !filepath.IsLocal(f.Name) || strings.ContainsAny(f.Name, `/\`) {
		return fmt.Errorf("%q is not a data file's name", f.Name)
	}
	sum, err := hex.DecodeString(f.SHA256)
	if err != nil || len(sum) != sha256.Size || f.Bytes < 0 {
		return fmt.Errorf("file %q has size %d and SHA-256 %q", f.Name, f.Bytes, f.SHA256)
	}
	return nil
}

func (t tensor) check() error {
	dtype, ok := byName[t.DType]
	if !ok {
		return fmt.Errorf("unknown element type %q", t.DType)
	}
	if _, ok := byteSize(dtype, t.Shape); !ok || slices.Contains(t.Shape, 0) {
		return fmt.Errorf("impossible shape %v", t.Shape)
	}
	for _, p := range t.Pieces {
		inside := len(p.Start) == len(t.Shape) && len(p.Size) == len(t.Shape)
		for axis, d := range t.Shape {
			inside = inside && p.Size[axis] >= 1 && p.Start[axis] >= 0 && p.Start[axis] <= d-p.Size[axis]
		}
		if !inside {
			return fmt.Errorf("a piece has start %v and size %v, but the shape is %v", p.Start, p.Size, t.Shape)
		}
		if dtype.IsPacked() && !t.full(p) {
			return fmt.Errorf("%s cannot be stored in pieces, which may not begin at a byte", t.DType)
		}
	}
	return checkTiling(t.Shape, t.Pieces)
}
