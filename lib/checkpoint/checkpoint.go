// Package checkpoint saves named tensors in folders, each complete and unchanged or refused, and reads them back bit
// for bit.
//
// A checkpoint of step 42 in DIR is the folder DIR/step-00000042 with
//
//   - data files in the safetensors format (https://github.com/huggingface/safetensors, "Format"), which Python and
//     others read as they are, and
//   - manifest.json, which says what the data files are: the step, the caller's metadata, the element type and shape of
//     each tensor and the pieces that hold it, and the size and SHA-256 of each file. It is one JSON object,
//     {"sha256":"…","manifest":{…}}, where sha256 is of the bytes of the inner object as they lie in the file.
//
// The checksum is SHA-256 because it finds every damage, not only the likely ones, because processors have instructions
// for it, and because "sha256sum" checks a file with no program of ours.
//
// A tensor may lie in any number of pieces, boxes that tile it, in any number of files. [Save] writes one file, and
// each tensor whole. Where every rank holds a part of the tensors, all write together: one of them calls [Begin], each
// writes the runs of elements that it has into a file of its own ([WriteParts]), and when all have, the first one
// completes the checkpoint ([Shared.Commit]), which only then is one. A run that is not a box lies in several arrays of
// the file, each named after the place of its first element in the whole, in row-major order: "head.w#1536".
//
// Whoever wrote the pieces, [Checkpoint.Read] puts them together, and [Checkpoint.ReadRanges] reads any runs of
// elements: what 8 ranks wrote, 3 can go on with.
package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/shardbook/shardbook/lib/params"
)

// Checkpoint is a checkpoint whose manifest has been read and verified, and whose files were all there, at their sizes.
// What is in the data files is verified when it is read. It holds no open files, and may be used by several goroutines.
type Checkpoint struct {
	// Path is the checkpoint's folder.
	Path string
	// Step is the step that it was saved under.
	Step int

	manifest manifest
}

// Open reads the manifest of the checkpoint in the folder at the path. It returns an error that names the file if the
// manifest does not match its own checksum or contradicts itself, if the folder's name says another step, or if a data
// file is missing, has another size, or is not in the manifest. A folder with no manifest is no checkpoint:
// [fs.ErrNotExist].
func Open(path string) (*Checkpoint, error) {
	name := filepath.Join(path, manifestName)
	text, err := readManifest(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("checkpoint: %s is no complete checkpoint, it has no manifest: %w; "+
			"give a folder that Save or Commit returned", path, err)
	} else if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	m, err := parseManifest(text)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %s: %w", name, err)
	}
	if step, ok := stepOf(filepath.Base(path)); ok && step != m.Step {
		return nil, fmt.Errorf("checkpoint: %s holds step %d, its folder says step %d: give the folder its own name back",
			name, m.Step, step)
	}
	if err := m.checkFolder(path, remedy, "remove it"); err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	return &Checkpoint{Path: path, Step: m.Step, manifest: m}, nil
}

func readManifest(name string) ([]byte, error) {
	f, size, err := openRegular(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if size > maxManifest {
		return nil, fmt.Errorf("%s has %d bytes, a manifest has %d at most: it is none of ours", name, size, maxManifest)
	}
	return io.ReadAll(io.LimitReader(f, size))
}

// openRegular opens a file to read, and returns its size. What is not a regular file is an error: to open a pipe would
// wait for its writer, and a link may lead out of the checkpoint.
func openRegular(name string) (*os.File, int64, error) {
	return openWith(name, os.O_RDONLY)
}

// openWith looks at what it has opened, not at the name before: another file may get the name between the two.
func openWith(name string, flag int) (*os.File, int64, error) {
	f, err := os.OpenFile(name, flag|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.ENXIO) { // a link, a socket
		return nil, 0, notRegular(name)
	} else if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = notRegular(name)
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, info.Size(), nil
}

func notRegular(name string) error {
	return fmt.Errorf("%s is not a regular file: put the file itself there", name)
}

// checkFolder compares what lies in the folder with the manifest's files. The errors say what to do about a file that
// is damaged or missing, and about one that is not in the manifest.
func (m *manifest) checkFolder(path, damaged, extra string) error {
	sizes := map[string]int64{}
	for _, f := range m.Files {
		sizes[f.Name] = f.Bytes
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		name := filepath.Join(path, entry.Name())
		want, ok := sizes[entry.Name()]
		if entry.Name() == manifestName {
			continue
		} else if !ok {
			return fmt.Errorf("%s is not in the checkpoint's manifest: %s", name, extra)
		}
		delete(sizes, entry.Name())
		if info, err := entry.Info(); err != nil {
			return err
		} else if !info.Mode().IsRegular() {
			return notRegular(name)
		} else if info.Size() != want {
			return fmt.Errorf("%s has %d bytes, it was written with %d: %s", name, info.Size(), want, damaged)
		}
	}
	for _, f := range m.Files {
		if _, missing := sizes[f.Name]; missing {
			return fmt.Errorf("%s is missing: %s", filepath.Join(path, f.Name), damaged)
		}
	}
	return nil
}

// remedy is what can be done about a damaged file.
const remedy = "restore the file from a copy, or move this checkpoint away and use one before it"

// Meta decodes the caller's metadata into a pointer, as [json.Unmarshal] does, with one difference: a field that the
// target lacks is an error, because a setting that the program does not know is one that it would silently not follow.
// To see whatever is there, give a *map[string]any or a *json.RawMessage. It is an error if Save was given nil.
func (c *Checkpoint) Meta(into any) error {
	if string(c.manifest.Meta) == "null" {
		return fmt.Errorf("checkpoint: %s was saved with no metadata", c.Path)
	}
	decoder := json.NewDecoder(bytes.NewReader(c.manifest.Meta))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return fmt.Errorf("checkpoint: the metadata of %s does not fit a %T: %w; it is %s", c.Path, into, err,
			shorten(string(c.manifest.Meta)))
	}
	return nil
}

// Tree returns what the checkpoint holds, in the order in which it was saved. The tree is the caller's to change.
func (c *Checkpoint) Tree() params.Tree {
	tree := make(params.Tree, len(c.manifest.Tensors))
	for i, t := range c.manifest.Tensors {
		tree[i] = params.New(t.Name, t.dtype(), slices.Clone(t.Shape)...)
	}
	return tree
}

func shorten(text string) string {
	if len(text) > 300 {
		text = text[:300] + "…"
	}
	return text
}
