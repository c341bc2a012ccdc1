package checkpoint

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/params"
)

// Save writes a checkpoint of the step, at least 0, into the folder dir, which it creates if necessary, and returns the
// checkpoint's own folder. values has one value for each entry of the tree, in order, on the host or any device. The
// metadata is anything that [json.Marshal] takes, such as a struct of settings; it may be nil.
//
// The checkpoint appears complete or not at all, however the process ends: Save writes it under another name, syncs it
// to disk, and renames it. It never replaces a checkpoint of the same step: the error is [fs.ErrExist]. Several
// goroutines, processes or hosts may save into one folder at the same time; of those that save the same step, one
// succeeds. Files of a process that ended before it was done are removed by the next Save on its host, and by other
// hosts after a day. Only the owner may write to the files and folders; the umask says who else may read.
//
// Save then removes all but the newest keep of the complete checkpoints up to this step; 0 removes none. Later steps
// are not touched: they are another run's, or this run has gone back. If only the removal fails, the path is returned
// with the error.
//
// Cancelling ctx stops Save between two tensors, and leaves nothing behind. Save copies at most one tensor at a time to
// the host. The tensors must not change until it returns.
func Save(ctx context.Context, dir string, step int, meta any, tree params.Tree, values []*tensors.Tensor, keep int) (
	path string, err error) {

	if err := checkInput(tree, values, keep); err != nil {
		return "", fmt.Errorf("checkpoint: %w", err)
	}
	metadata, err := encodeMeta(meta)
	if err != nil {
		return "", err
	}
	if err := ctx.Err(); err != nil {
		return "", fmt.Errorf("checkpoint: saving step %d: %w", step, err)
	}
	s, err := Begin(dir, step)
	if err != nil {
		return "", err
	}
	defer s.Discard()
	parts := make([]Part, len(tree))
	for i, spec := range tree {
		parts[i] = Part{Spec: spec, Value: values[i]}
	}
	written, err := writeParts(ctx, s.Path(), 0, step, parts)
	if err != nil {
		return "", s.failure(err)
	}
	return s.Commit(ctx, metadata, tree, []Written{written}, keep)
}

func encodeMeta(meta any) (json.RawMessage, error) {
	text, err := json.Marshal(meta)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: the metadata cannot be written as JSON: %w", err)
	}
	return text, nil
}

// checkInput finds errors before anything is written.
func checkInput(tree params.Tree, values []*tensors.Tensor, keep int) error {
	if err := checkTree(tree, keep); err != nil {
		return err
	}
	if _, err := params.Zip(tree, values); err != nil {
		return err
	}
	for i, spec := range tree {
		// first, since params.Check would panic for an invalid tensor
		if err := checkValue(spec, values[i]); err != nil {
			return err
		}
	}
	return params.Check(tree, values)
}

func checkTree(tree params.Tree, keep int) error {
	if keep < 0 {
		return fmt.Errorf("keep is %d: choose at least 0, which keeps all", keep)
	}
	return tree.Validate()
}
