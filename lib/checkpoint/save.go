package checkpoint

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/params"
)

// Save writes a checkpoint of the step, at least 0, into the folder dir, which it makes if need be, and returns the
// checkpoint's own folder. There is one value for each entry of the tree, in its order, on the host or on any device.
// The names go into the file as they are. The metadata is anything that [json.Marshal] takes, such as a struct of the
// model's and the optimizer's settings; it may be nil. Names of axes are not saved.
//
// The checkpoint appears whole or not at all, however the process ends: it is written aside, reaches the disk, and is
// then given its name. A checkpoint of that step which is there already is never replaced: [fs.ErrExist]. Several
// goroutines, processes or hosts may save into one folder at once; of those that save the same step, one wins. What a
// process that has ended left unfinished is removed by the next Save on its host, and by others after a day. Only the
// owner of the files and folders may write to them; the umask says who else may read.
//
// Then all but the newest keep of the complete checkpoints up to this step are removed; 0 keeps all. Those of later
// steps are left alone: they are another run's, or this run has gone back. If only that fails, the path is returned
// with the error.
//
// Cancelling ctx stops Save between two tensors, and leaves nothing behind. Save takes no copy of the tensors but the
// one, on the host, that a single tensor on a device with memory of its own needs. They must not change until it
// returns.
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

// checkInput finds what is wrong before anything is written.
func checkInput(tree params.Tree, values []*tensors.Tensor, keep int) error {
	if err := checkTree(tree, keep); err != nil {
		return err
	}
	if _, err := params.Zip(tree, values); err != nil {
		return err
	}
	for i, spec := range tree {
		if err := checkValue(spec, values[i]); err != nil { // also of a nil tensor, on which params.Check would panic
			return err
		}
	}
	return params.Check(tree, values)
}

func checkTree(tree params.Tree, keep int) error {
	if keep < 0 {
		return fmt.Errorf("keep %d: it must not be negative, and 0 keeps all", keep)
	}
	return tree.Validate()
}
