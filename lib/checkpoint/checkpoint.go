// Package checkpoint saves named tensors in folders and reads them back bit for bit. A checkpoint is complete and
// verified, or it is refused.
//
// The checkpoint of step 42 in DIR is the folder DIR/step-00000042 with
//
//   - data files in the safetensors format (https://github.com/huggingface/safetensors, "Format"), which Python and
//     others can read, and
//   - manifest.json, which describes them: the step, the caller's metadata, the element type, shape and pieces of each
//     tensor, and the size and SHA-256 of each file. It is one JSON object,
//     {"sha256":"…","manifest":{…}}, where sha256 is of the bytes of the inner object as they are in the file.
//
// The checksum is SHA-256 because it finds any damage, processors have instructions for it, and "sha256sum" checks a
// file without a program of ours.
//
// A tensor is stored in any number of pieces, boxes that tile it, in any number of files. [Save] writes one file with
// each tensor in one piece. If every rank has a part of the tensors, all ranks write together: one calls [Begin], each
// writes its ranges of elements into its own file ([WriteParts]), and when all are done, the first one completes the
// checkpoint ([Shared.Commit]). A range that is not a box is stored as several arrays of the file, each named after the
// row-major index of its first element in the full tensor: "head.w#1536".
//
// [Checkpoint.Read] assembles the pieces, and [Checkpoint.ReadRanges] reads any ranges of elements: 3 ranks can
// continue from what 8 ranks wrote.
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

// Checkpoint is a checkpoint whose manifest has been verified and whose files exist with the right sizes. The contents
// of the data files are verified when they are read. It holds no open files, and may be used by several goroutines.
type Checkpoint struct {
	// Path is the checkpoint's folder.
	Path string
	// Step is the step that was saved.
	Step int

	manifest manifest
}

// Open reads the manifest of the checkpoint in the folder at the path. It returns an error that names the file if the
// manifest does not match its checksum or is inconsistent, if the folder's name has another step, or if a data file is
// missing, has another size, or is not in the manifest. A folder without a manifest is not a checkpoint: the error is
// [fs.ErrNotExist].
func Open(path string) (*Checkpoint, error) {
	name := filepath.Join(path, manifestName)
	text, err := readManifest(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("checkpoint: %s is not a complete checkpoint, it has no manifest: %w; "+
			"give a folder that Save or Commit returned", path, err)
	} else if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	m, err := parseManifest(text)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %s: %w", name, err)
	}
	if step, ok := stepOf(filepath.Base(path)); ok && step != m.Step {
		return nil, fmt.Errorf("checkpoint: %s has step %d, but its folder's name says step %d: rename the folder",
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
		return nil, fmt.Errorf("%s has %d bytes, but a manifest has at most %d: it is not one; %s", name, size,
			maxManifest, remedy)
	}
	return io.ReadAll(io.LimitReader(f, size))
}

// openRegular opens a regular file to read, and returns its size. Other files are errors: opening a pipe would wait for
// its writer, and a link may lead out of the checkpoint.
func openRegular(name string) (*os.File, int64, error) {
	return openWith(name, os.O_RDONLY)
}

// openWith checks the opened file rather than the name, which another file may get in between.
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

// checkFolder compares the folder's contents with the manifest. damaged and extra say what to do about a file that is
// damaged or missing, and about one that is not in the manifest.
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
			return fmt.Errorf("%s has %d bytes, but was written with %d: %s", name, info.Size(), want, damaged)
		}
	}
	for _, f := range m.Files {
		if _, missing := sizes[f.Name]; missing {
			return fmt.Errorf("%s is missing: %s", filepath.Join(path, f.Name), damaged)
		}
	}
	return nil
}

// remedy says what to do about a damaged file.
const remedy = "restore the file from a copy, or move this checkpoint away and use an earlier one"

// Meta decodes the caller's metadata into a pointer, as [json.Unmarshal] does, except that a field which the target
// lacks is an error: the program would silently ignore a setting. To accept any field, pass a *map[string]any or a
// *json.RawMessage. It is an error if the metadata was nil.
func (c *Checkpoint) Meta(into any) error {
	if string(c.manifest.Meta) == "null" {
		return fmt.Errorf("checkpoint: %s was saved without metadata", c.Path)
	}
	decoder := json.NewDecoder(bytes.NewReader(c.manifest.Meta))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return fmt.Errorf("checkpoint: the metadata of %s does not fit a %T: %w; it is %s", c.Path, into, err,
			shorten(string(c.manifest.Meta)))
	}
	return nil
}

// Tree returns the checkpoint's tensors in the order in which they were saved. The caller may change it.
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
