package rank

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/params"
)

// Saving is a checkpoint that ranks write together.
type Saving struct {
	Dir  string
	Step int
	Meta any
	Keep int         // see [checkpoint.Save]
	Tree params.Tree // all that it holds
	// Parts returns what the rank writes, into a file of its own. No parts are no file.
	Parts func() ([]checkpoint.Part, error)
}

// Save writes a checkpoint: rank 0 begins it and commits it. It is a collective call. Where one rank cannot write, there is no
// checkpoint, and all ranks get an error: that rank its own, rank 0 one that names it. [Lost] tells whether they can go on.
func Save(ctx context.Context, g group.Group, s Saving) error {
	var draft *checkpoint.Shared
	var own error
	path := ""
	if g.Rank() == 0 {
		if draft, own = checkpoint.Begin(s.Dir, s.Step); own == nil {
			path = draft.Path()
			defer draft.Discard()
		}
	}
	told, err := Exchange(ctx, g, []byte(path))
	if err != nil {
		return err
	}
	var report []byte
	if path = string(told[0]); path != "" {
		report, own = s.write(ctx, path, g.Rank())
	}
	if told, err = Exchange(ctx, g, report); err != nil {
		return err
	}
	done := []byte{}
	if g.Rank() == 0 && own == nil {
		if own = s.commit(ctx, draft, told); own == nil {
			done = []byte("done")
		}
	}
	if told, err = Exchange(ctx, g, done); err != nil {
		return err
	}
	if own == nil && len(told[0]) == 0 {
		own = fmt.Errorf("rank: another rank could not write its part of the checkpoint; %w", ErrElsewhere)
	}
	return own
}

// write writes a rank's parts, and returns its report: what it has written, or null for nothing.
func (s Saving) write(ctx context.Context, path string, rank int) ([]byte, error) {
	parts, err := s.Parts()
	if err != nil {
		return nil, err
	}
	var written *checkpoint.Written
	if len(parts) > 0 {
		w, err := checkpoint.WriteParts(ctx, path, rank, s.Step, parts)
		if err != nil {
			return nil, err
		}
		written = &w
	}
	return json.Marshal(written)
}

// commit ends a checkpoint, of what the ranks report.
func (s Saving) commit(ctx context.Context, draft *checkpoint.Shared, reports [][]byte) error {
	var all []checkpoint.Written
	for rank, report := range reports {
		var w *checkpoint.Written
		if len(report) == 0 {
			return fmt.Errorf("rank: rank %d could not write its part of the checkpoint; %w", rank, ErrElsewhere)
		}
		if err := json.Unmarshal(report, &w); err != nil {
			return fmt.Errorf("rank: the report of rank %d: %w", rank, err)
		}
		if w != nil {
			all = append(all, *w)
		}
	}
	_, err := draft.Commit(ctx, s.Meta, s.Tree, all, s.Keep)
	return err
}

// Load has all ranks read what is theirs of the checkpoint of one step. It is a collective call: where one rank's read fails, all get
// an error, and none has anything new; or if they open the checkpoints of several steps. A nil checkpoint is an error, too. [Lost]
// tells whether they can go on.
func Load(ctx context.Context, g group.Group, c *checkpoint.Checkpoint, read func() error) error {
	own := errors.New("rank: the checkpoint is nil: open it, on every rank")
	step := ""
	if c != nil {
		if own = read(); own == nil {
			step = strconv.Itoa(c.Step)
		}
	}
	told, err := Exchange(ctx, g, []byte(step))
	if err != nil {
		return err
	}
	for rank, t := range told {
		switch {
		case own != nil:
		case len(t) == 0:
			own = fmt.Errorf("rank: rank %d could not read the checkpoint; %w", rank, ErrElsewhere)
		case string(t) != step:
			own = fmt.Errorf("rank: rank %d loads the checkpoint of step %s, this one that of step %s: give all the same", rank, t, step)
		}
	}
	return own
}

// Lost says whether an error is one of the group, after which its ranks cannot go on.
func Lost(err error) bool {
	var failure *group.Failure
	return errors.As(err, &failure)
}

// ErrElsewhere is what an error wraps that a rank has because another has one of its own.
var ErrElsewhere = errors.New("it says why")

// Exchange gives all ranks each rank's message, in the order of the ranks. It is a collective call.
func Exchange(ctx context.Context, g group.Group, own []byte) ([][]byte, error) {
	sizes := make([]int64, g.Size())
	if err := group.AllGather(ctx, g, []int64{int64(len(own))}, sizes); err != nil {
		return nil, err
	}
	longest := int64(1)
	for _, n := range sizes {
		longest = max(longest, n)
	}
	padded := make([]byte, longest)
	copy(padded, own)
	all := make([]byte, len(padded)*g.Size())
	if err := group.AllGather(ctx, g, padded, all); err != nil {
		return nil, err
	}
	messages := make([][]byte, g.Size())
	for i := range messages {
		messages[i] = all[i*len(padded):][:sizes[i]]
	}
	return messages, nil
}
