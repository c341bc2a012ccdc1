package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/shardbook/shardbook/internal/rank"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/pipeline/schedule"
	"github.com/shardbook/shardbook/lib/trace"
)

// Worker computes what the actions of a rank say. All of its methods are called from one goroutine.
type Worker interface {
	// Compute makes a pass with a version of the weights (see schedule.Weights). in is what the pass needs of another stage:
	// the output of the one before, or the gradient from the one behind; nil at the ends of the model and for other passes.
	// It is the worker's from then on. out is what another stage needs of the pass, or nil if there is nothing.
	Compute(ctx context.Context, a schedule.Action, version int, in Message) (out Message, err error)
	// Room makes room for the out of an action of another rank.
	Room(of schedule.Action) (Message, error)
}

// Message is what one stage gives another.
type Message interface {
	// Memory is where it lies, while it is sent or received.
	Memory() (group.Type, group.Buffer, error)
	Free() error
}

// PlayOptions say how a schedule is played.
type PlayOptions struct {
	// Timeout is how long one pass may take, and an update twice as long; 0 is [group.DefaultTimeout]. A rank that takes longer
	// fails the group, and the others learn by which pass.
	Timeout time.Duration
	// Trace, where it is not nil, gets a span for each action, named as [schedule.Action.String] has it, on the stream
	// [trace.Compute], and one for what the rank waits for on [trace.Wait].
	Trace *trace.Recorder
	// First is the number of the group's first rank where the group is a part of a larger one: traces and errors count from there.
	First int
}

// Player plays a schedule: it has each rank's actions done in their order, and the messages between them. It is plain data,
// and may be used by all ranks at once.
type Player struct {
	Schedule schedule.Schedule
	programs [][]schedule.Op
	versions [][]int
}

// NewPlayer prepares a schedule to be played. One that [schedule.Schedule.Check] refuses is an error.
func NewPlayer(s schedule.Schedule) (*Player, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	p := &Player{Schedule: s}
	var err error
	if p.programs, err = s.Programs(); err != nil {
		return nil, err
	}
	p.versions, err = s.Versions()
	return p, err
}

// Play plays the schedule once, as the group's rank of the same number. Messages go in the background, while the rank
// computes. It is a collective call: an error on one rank is one on all, which says which rank failed, and where it can be
// known, in which pass of which stage for which micro-batch. A rank that had come to its end before learns of it with its next call
// of the group. What the worker panics with is an error.
func (p *Player) Play(ctx context.Context, g group.Group, w Worker, o PlayOptions) (err error) {
	if g.Size() != len(p.Schedule.Ranks) {
		return fmt.Errorf("pipeline: a group of %d ranks for the schedule %s of %d: make them equal", g.Size(), p.Schedule.Name, len(p.Schedule.Ranks))
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	y := &play{Player: p, ctx: ctx, cancel: cancel, g: g, worker: w, options: o, rank: o.First + g.Rank(), arriving: map[output]*arrival{}, here: map[output]Message{}}
	y.where = fmt.Sprintf("pipeline: rank %d", y.rank)
	whole := false
	defer func() {
		if thrown := recover(); thrown != nil {
			err = fmt.Errorf("%s: panic: %v\n%s", y.where, thrown, debug.Stack())
		} else if !whole && err == nil { // or the others would wait for it
			err = fmt.Errorf("%s: its goroutine was ended", y.where)
		}
		err = errors.Join(err, y.end(err))
	}()
	at := 0
	for _, op := range p.programs[g.Rank()] {
		var err error
		switch op.Kind {
		case schedule.Recv:
			err = y.receive(op)
		case schedule.Compute:
			if op.Action.Pass == schedule.Update && p.Schedule.Weights == schedule.Flush {
				err = y.flush(0) // or a send that failed would show only after what ranks add up in the update
			}
			if err != nil {
				return err
			}
			err = y.compute(op.Action, p.versions[g.Rank()][at])
			at++
		case schedule.Send:
			err = y.send(op)
		}
		if err != nil {
			return err
		}
	}
	err = y.flush(0)
	whole = true
	return err
}

// play is one playing of a schedule by a rank.
type play struct {
	*Player
	ctx      context.Context
	cancel   context.CancelCauseFunc
	g        group.Group
	rank     int    // its number in traces and errors
	where    string // the rank, and its last pass, as errors have them
	worker   Worker
	options  PlayOptions
	arriving map[output]*arrival // receives that are started and not used yet
	here     map[output]Message  // what the rank's own stages have made for each other
	leaving  []departure         // sends that are started, oldest first
}

// compute makes a pass, once its input is there.
func (y *play) compute(a schedule.Action, version int) error {
	var in Message
	if need, ok := y.inputOf(a); ok {
		if arriving := y.arriving[need]; arriving != nil {
			if err := y.wait(arriving.pending, "for "+a.String()); err != nil {
				return fmt.Errorf("pipeline: rank %d, waiting for %s from rank %d: %w", y.rank, need, y.options.First+arriving.from, y.within(err))
			}
			in = arriving.message
			delete(y.arriving, need)
		} else {
			in = y.here[need]
			delete(y.here, need)
		}
	}
	y.where = fmt.Sprintf("pipeline: rank %d, in the %s pass of stage %d for micro-batch %d", y.rank, a.Pass, a.Stage, a.Microbatch)
	limit := cmp.Or(y.options.Timeout, group.DefaultTimeout)
	if a.Pass == schedule.Update {
		limit *= 2 // it may wait for other ranks, and what the group says of these comes first
	}
	defer y.watch(y.where, limit)()
	end := y.options.Trace.Start(y.rank, trace.Compute, a.String())
	out, err := y.worker.Compute(y.ctx, a, version, in)
	end()
	if out != nil {
		y.here[outputOf(a)] = out
	}
	if late := context.Cause(y.ctx); late != nil && y.ctx.Err() != nil {
		err = errors.Join(err, late)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", y.where, err)
	}
	return nil
}

// watch fails the group if the rank does not come to the end of a pass in time: nobody else can say which it is in.
func (y *play) watch(where string, limit time.Duration) (end func()) {
	told := make(chan struct{})
	timer := time.AfterFunc(limit, func() {
		defer close(told)
		y.cancel(fmt.Errorf("%s: it takes longer than %v", where, limit))
		_ = rank.Ended(y.ctx, y.g) // which tells the others; what this rank returns says the same
	})
	return func() {
		if !timer.Stop() {
			<-told
		}
	}
}

// end leaves nothing behind: after a failure, what is under way ends with the context.
func (y *play) end(failed error) error {
	if failed != nil {
		y.cancel(failed)
		_ = rank.Ended(y.ctx, y.g)
	}
	var errs []error
	free := func(m Message) {
		if m != nil {
			errs = append(errs, m.Free())
		}
	}
	for _, a := range y.arriving {
		if a.pending != nil {
			_ = a.pending.Wait()
		}
		free(a.message)
	}
	for _, d := range y.leaving {
		if d.pending != nil {
			_ = d.pending.Wait()
		}
		free(d.message)
	}
	for _, m := range y.here {
		free(m)
	}
	return errors.Join(errs...)
}
