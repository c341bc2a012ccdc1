package checkpoint

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/shardbook/shardbook/lib/params"
)

// Shared is a checkpoint that several writers write together. The process that began it commits or discards it, from
// one goroutine at a time. If that process ends before, there is no checkpoint; the next Begin or Save in the folder on
// its host removes the files, and one on another host does when nothing has changed for a day.
type Shared struct {
	path  string // of the checkpoint after Commit
	step  int
	draft *draft
	ended bool
}

// Begin starts a checkpoint of the step, at least 0, in the folder dir, which it creates if necessary and which all
// writers must see. If the step exists already, the error is [fs.ErrExist].
func Begin(dir string, step int) (*Shared, error) {
	if step < 0 {
		return nil, fmt.Errorf("checkpoint: step %d: choose at least 0", step)
	}
	s := &Shared{path: filepath.Join(dir, folderName(step)), step: step}
	var err error
	if s.draft, err = begin(s.path); err != nil {
		return nil, s.failure(err)
	}
	return s, nil
}

// failure wraps the reason why there is no checkpoint.
func (s *Shared) failure(err error) error {
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("checkpoint: step %d is saved already, and was not changed: %w; "+
			"move %s away, or save into another folder", s.step, fs.ErrExist, s.path)
	}
	return fmt.Errorf("checkpoint: saving %s: %w", s.path, err)
}

// Path returns the folder of the draft, for [WriteParts]. Readers ignore it.
func (s *Shared) Path() string { return s.draft.path }

// Discard removes the files of a checkpoint that will not be committed. After Commit it does nothing.
func (s *Shared) Discard() {
	s.ended = true
	s.draft.discard()
}

// Commit completes the checkpoint and returns its folder: it writes the manifest, syncs everything to disk, renames the
// folder, and removes old checkpoints as [Save] does. See there for meta and keep. The tree lists all tensors of the
// checkpoint, in the order of [Checkpoint.Tree]; written is what [WriteParts] returned to each writer, in any order.
//
// It returns an error that names the tensor or the file if the parts do not cover every tensor of the tree exactly
// once, if a writer's file is missing or has another size (its contents are checked when it is read), or if there is a
// file that is not in written. After an error without a path, the draft is discarded and no other checkpoint is
// touched.
func (s *Shared) Commit(ctx context.Context, meta any, tree params.Tree, written []Written,
	keep int) (path string, err error) {
	if s.ended {
		return "", fmt.Errorf("checkpoint: %s was committed or discarded before: call Begin again", s.path)
	}
	defer s.Discard()
	if err := checkTree(tree, keep); err != nil {
		return "", fmt.Errorf("checkpoint: %w", err)
	}
	metadata, err := encodeMeta(meta)
	if err != nil {
		return "", err
	}
	if err := s.publish(ctx, metadata, tree, written); err != nil {
		return "", s.failure(err)
	}
	dir := filepath.Dir(s.path)
	if err := syncFolder(dir); err != nil {
		return s.path, fmt.Errorf("checkpoint: %s is saved, but may not have reached the disk: %w", s.path, err)
	}
	if err := removeOld(dir, s.step, keep); err != nil {
		return s.path, fmt.Errorf("checkpoint: %s is saved, but an older one could not be removed: %w", s.path, err)
	}
	return s.path, nil
}

func (s *Shared) publish(ctx context.Context, metadata json.RawMessage, tree params.Tree, written []Written) error {
	m := manifest{Format: format, Step: s.step, Meta: metadata}
	if err := m.gather(filepath.Base(s.Path()), tree, written); err != nil {
		return err
	}
	if err := m.check(); err != nil {
		return fmt.Errorf("%w: write every element by one writer, and pass all results of WriteParts to Commit", err)
	}
	if err := m.checkFolder(s.Path(), "have all writers write again",
		"pass its writer's result to Commit"); err != nil {
		return err
	}
	text, err := m.encode()
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.draft.publish(text, s.path)
}

// gather adds the writers' results to the manifest, in an order that does not depend on theirs.
func (m *manifest) gather(draft string, tree params.Tree, written []Written) error {
	places := make(map[string]int, len(tree))
	m.Files, m.Tensors = []file{}, make([]tensor, len(tree))
	for i, spec := range tree {
		places[spec.Name] = i
		m.Tensors[i] = describe(spec)
	}
	written = slices.Clone(written)
	slices.SortFunc(written, func(a, b Written) int { return cmp.Compare(a.File.Name, b.File.Name) })
	for _, w := range written {
		if w.Draft != draft {
			return fmt.Errorf("%q was written into the draft %q, but this is %q: pass the results of this checkpoint",
				w.File.Name, w.Draft, draft)
		}
		m.Files = append(m.Files, w.File)
		for _, t := range w.Tensors {
			i, ok := places[t.Name]
			if !ok {
				return fmt.Errorf("%s has %q, which is not in the tree: all writers and Commit must have the same tree",
					w.File.Name, t.Name)
			}
			full := &m.Tensors[i]
			if t.DType != full.DType || !slices.Equal(t.Shape, full.Shape) {
				return fmt.Errorf("%s has a part of a %q that is %s %v, but in the tree it is %s %v: all writers and "+
					"Commit must have the same tree", w.File.Name, t.Name, t.DType, t.Shape, full.DType, full.Shape)
			}
			full.Pieces = append(full.Pieces, t.Pieces...)
		}
	}
	return nil
}
