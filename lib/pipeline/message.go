package pipeline

import (
	"fmt"

	"github.com/shardbook/shardbook/internal/rank"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/pipeline/schedule"
	"github.com/shardbook/shardbook/lib/trace"
)

// output is what an action makes for another stage: the output of a forward pass, or the gradient of a stage's input.
type output struct {
	forward           bool
	stage, microbatch int
}

func outputOf(a schedule.Action) output {
	return output{a.Pass == schedule.Forward, a.Stage, a.Microbatch}
}

// inputOf is the output that an action needs, if it needs one.
func (p *Player) inputOf(a schedule.Action) (need output, ok bool) {
	a.Stage, ok = a.InputFrom(p.Schedule.Stages)
	return outputOf(a), ok
}

func (o output) String() string {
	what := "gradient"
	if o.forward {
		what = "output"
	}
	return fmt.Sprintf("the %s of stage %d for micro-batch %d", what, o.stage, o.microbatch)
}

type arrival struct {
	message Message
	from    int
	pending *group.Pending
}

type departure struct {
	message Message
	made    schedule.Action
	to      int
	pending *group.Pending
}

// start makes a call in the background. One that fails ends the play at once: the rank may be waiting for a message
// that its peer sends only after this one, and would not look at this call before.
func (y *play) start(call group.Call) *group.Pending {
	p := y.g.Start(y.ctx, call)
	go func() {
		if err := p.Wait(); err != nil {
			y.cancel(err)
		}
	}()
	return p
}

// receive starts to receive a message.
func (y *play) receive(op schedule.Op) error {
	m, err := y.worker.Room(op.Action)
	if err != nil {
		return err
	}
	a := &arrival{message: m, from: op.Peer}
	y.arriving[outputOf(op.Action)] = a
	kind, memory, err := m.Memory()
	if err != nil {
		return err
	}
	a.pending = y.start(group.Call{Kind: group.KindRecv, Type: kind, Peer: op.Peer, Out: memory})
	return nil
}

// send starts to send what an action made, and frees what has been sent.
func (y *play) send(op schedule.Op) error {
	of := outputOf(op.Action)
	m := y.here[of]
	delete(y.here, of)
	d := departure{message: m, made: op.Action, to: op.Peer}
	y.leaving = append(y.leaving, d)
	if m == nil {
		return fmt.Errorf("pipeline: %s, which rank %d waits for, is nil: have the worker return it", of, y.options.First+op.Peer)
	}
	kind, memory, err := m.Memory()
	if err != nil {
		return err
	}
	y.leaving[len(y.leaving)-1].pending = y.start(group.Call{Kind: group.KindSend, Type: kind, Peer: op.Peer, In: memory})
	for len(y.leaving) > 0 {
		select {
		case <-y.leaving[0].pending.Done():
			if err := y.flush(len(y.leaving) - 1); err != nil {
				return err
			}
			continue
		default:
		}
		break
	}
	return nil
}

// flush waits for the oldest sends, until only so many are left, and frees what they sent.
func (y *play) flush(left int) error {
	for len(y.leaving) > left {
		d := y.leaving[0]
		if err := y.wait(d.pending, "send "+d.made.String()); err != nil {
			return fmt.Errorf("pipeline: rank %d, sending %s to rank %d: %w", y.rank, outputOf(d.made), y.options.First+d.to, y.within(err))
		}
		y.leaving = y.leaving[1:]
		if err := d.message.Free(); err != nil {
			return err
		}
	}
	return nil
}

// within says which ranks an error of the group is about, where that is a part of a larger one.
func (y *play) within(err error) error {
	if y.options.First == 0 {
		return err
	}
	return rank.Within(rank.Numbers(y.options.First, 1, y.g.Size()), err)
}

func (y *play) wait(p *group.Pending, what string) error {
	select {
	case <-p.Done():
	default:
		defer y.options.Trace.Start(y.rank, trace.Wait, what)()
	}
	return p.Wait()
}
