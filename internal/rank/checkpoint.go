package rank

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/params"
)

// Stored is an engine's rank as the checkpoints have it that ranks write together.
type Stored struct {
	Group group.Group
	Tree  params.Tree // the whole state of all ranks
	Steps *int        // the number of batches that the rank has trained on
	// Parts returns what the rank writes, into a file of its own. No parts are no file.
	Parts func() ([]checkpoint.Part, error)
	// Read reads what is the rank's of a checkpoint, and refuses one that does not fit. The rank stays as it is.
	Read func(ctx context.Context, c *checkpoint.Checkpoint) ([]*tensors.Tensor, error)
	// Take puts what Read returned in the place of the rank's state.
	Take func(ctx context.Context, state []*tensors.Tensor) error
	// Lose has the rank end, and returns an error that says so, and by what.
	Lose func(by error) error
}

// Save writes the checkpoint of the rank's step into the folder dir: see [checkpoint.Save] for its metadata, and for how many are kept.
// Rank 0 begins it and commits it. It is a collective call. Where one rank cannot write, there is no checkpoint, and all ranks get an
// error: that rank its own, rank 0 one that names it. They can go on; but an error of the group loses the rank.
func (s Stored) Save(ctx context.Context, dir string, meta any, keep int) error {
	return s.orLose(s.save(ctx, dir, meta, keep))
}

func (s Stored) save(ctx context.Context, dir string, meta any, keep int) error {
	var draft *checkpoint.Shared
	var own error
	path := ""
	if s.Group.Rank() == 0 {
		if draft, own = checkpoint.Begin(dir, *s.Steps); own == nil {
			path = draft.Path()
			defer draft.Discard()
		}
	}
	told, err := Exchange(ctx, s.Group, []byte(path))
	if err != nil {
		return err
	}
	var report []byte
	if path = string(told[0]); path != "" {
		report, own = s.write(ctx, path)
	}
	if told, err = Exchange(ctx, s.Group, report); err != nil {
		return err
	}
	done := []byte{}
	if s.Group.Rank() == 0 && own == nil {
		if own = s.commit(ctx, draft, meta, told, keep); own == nil {
			done = []byte("done")
		}
	}
	if told, err = Exchange(ctx, s.Group, done); err != nil {
		return err
	}
	if own == nil && len(told[0]) == 0 {
		own = fmt.Errorf("rank: another rank could not write its part of the checkpoint; %w", ErrElsewhere)
	}
	return own
}

// write writes a rank's parts, and returns its report: what it has written, or null for nothing.
func (s Stored) write(ctx context.Context, path string) ([]byte, error) {
	parts, err := s.Parts()
	if err != nil {
		return nil, err
	}
	var written *checkpoint.Written
	if len(parts) > 0 {
		w, err := checkpoint.WriteParts(ctx, path, s.Group.Rank(), *s.Steps, parts)
		if err != nil {
			return nil, err
		}
		written = &w
	}
	return json.Marshal(written)
}

// commit ends a checkpoint, of what the ranks report.
func (s Stored) commit(ctx context.Context, draft *checkpoint.Shared, meta any, reports [][]byte, keep int) error {
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
	_, err := draft.Commit(ctx, meta, s.Tree, all, keep)
	return err
}

// Load puts the state of a checkpoint in the place of the ranks': each reads what is its own. It is a collective call. Where one rank
// cannot read, all get an error, as they do if they open the checkpoints of several steps; they then stand where they stood. A nil
// checkpoint is an error, too. An error of the group loses the rank, and so does one in Take.
func (s Stored) Load(ctx context.Context, c *checkpoint.Checkpoint) error {
	state, err := s.read(ctx, c)
	if err != nil {
		return s.orLose(err)
	}
	if err := s.Take(ctx, state); err != nil {
		return s.Lose(err)
	}
	*s.Steps = c.Step
	return nil
}

// read reads what is the rank's, if all ranks can.
func (s Stored) read(ctx context.Context, c *checkpoint.Checkpoint) (state []*tensors.Tensor, err error) {
	own := errors.New("rank: the checkpoint is nil: open it, on every rank")
	step := ""
	if c != nil {
		if state, own = s.Read(ctx, c); own == nil {
			step = strconv.Itoa(c.Step)
		}
	}
	told, err := Exchange(ctx, s.Group, []byte(step))
	if err != nil {
		return nil, err
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
	return state, own
}

// orLose loses the rank by an error of the group, after which its ranks cannot go on.
func (s Stored) orLose(err error) error {
	var failure *group.Failure
	if errors.As(err, &failure) {
		return s.Lose(err)
	}
	return err
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
