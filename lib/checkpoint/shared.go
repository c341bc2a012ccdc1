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

// Shared is a checkpoint that several writers write together. Whoever began it commits or discards it, from one
// goroutine at a time; if its process ends before that, the checkpoint is not made, and the next Begin or Save in the
// folder on its host removes what was written of it; one on another host does, when nothing of it has changed for a
// day.
type Shared struct {
	path  string // the checkpoint's, once it is one
	step  int
	draft *draft
	ended bool
}

// Begin starts a checkpoint of the step, at least 0, in the folder dir, which it makes if need be. If that step is
// there already, the error is [fs.ErrExist]. The folder must be one that all writers see.
func Begin(dir string, step int) (*Shared, error) {
	if step < 0 {
		return nil, fmt.Errorf("checkpoint: step %d: it must not be negative", step)
	}
	s := &Shared{path: filepath.Join(dir, folderName(step)), step: step}
	var err error
	if s.draft, err = begin(s.path); err != nil {
		return nil, s.failure(err)
	}
	return s, nil
}

// failure says that, and why, there is no checkpoint.
func (s *Shared) failure(err error) error {
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("checkpoint: step %d is saved already, and was left as it is: %w; "+
			"move %s away, or save into another folder", s.step, fs.ErrExist, s.path)
	}
	return fmt.Errorf("checkpoint: saving %s: %w", s.path, err)
}

// Path returns the folder of the draft, which [WriteParts] writes into. Readers take it for no checkpoint.
func (s *Shared) Path() string { return s.draft.path }

// Discard ends a checkpoint that will not be committed, and removes what was written of it. After Commit it does
// nothing.
func (s *Shared) Discard() {
	s.ended = true
	s.draft.discard()
}

// Commit makes a checkpoint of what the writers wrote, and returns its folder: it writes the manifest, sees that all
// has reached the disk, gives the folder its name, and removes old checkpoints as [Save] does, which also says what the
// metadata and keep are. The tree is all that the checkpoint holds, in the order in which [Checkpoint.Tree] will have
// it; written is what [WriteParts] returned to each writer, in any order.
//
// It is an error, that names the tensor or the file, if the parts do not tile every tensor of the tree exactly once, or
// if a writer's file is not in the draft as it was written (its size is compared; what is in it, when it is read), or
// one is there that Commit was not told of. On any error but one that comes with a path, as Save's may, the draft is
// discarded and no other checkpoint is touched.
func (s *Shared) Commit(ctx context.Context, meta any, tree params.Tree, written []Written,
	keep int) (path string, err error) {
	if s.ended {
		return "", fmt.Errorf("checkpoint: %s was committed or discarded before: Begin it again", s.path)
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
		return fmt.Errorf("%w: have every element written by one writer, and tell Commit what each was told", err)
	}
	if err := m.checkFolder(s.Path(), "have all writers write again", "tell Commit what its writer was told"); err != nil {
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

// gather puts what the writers were told into the manifest, in an order that does not depend on theirs.
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
			return fmt.Errorf("%q was written into the draft %q, this one is %q: tell what WriteParts returned for this one",
				w.File.Name, w.Draft, draft)
		}
		m.Files = append(m.Files, w.File)
		for _, t := range w.Tensors {
			i, ok := places[t.Name]
			if !ok {
				return fmt.Errorf("%s has %q, which is not in the tree: all writers and Commit must have the same tree",
					w.File.Name, t.Name)
			}
			whole := &m.Tensors[i]
			if t.DType != whole.DType || !slices.Equal(t.Shape, whole.Shape) {
				return fmt.Errorf("%s has a part of a %q that is %s %v, the tree's is %s %v: "+
					"all writers and Commit must have the same tree",
					w.File.Name, t.Name, t.DType, t.Shape, whole.DType, whole.Shape)
			}
			whole.Pieces = append(whole.Pieces, t.Pieces...)
		}
	}
	return nil
}
