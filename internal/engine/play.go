package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// play is a step of a rank while it runs.
type play struct {
	*Rank
	*prepared
	ctx     context.Context
	cancel  context.CancelCauseFunc
	parts   []microBatch
	targets map[int]*dtensor.Tensor // by micro-batch
	losses  []*dtensor.Tensor
	metrics *dtensor.Tensor
	storing map[step.Value]int         // values that are copied to the host, and freed after that
	begun   map[int]*underWay          // operations between ranks that are under way, by position
	streams map[string]<-chan struct{} // closed when the last operation of each is done
	cuts    map[*segment]*cutRun       // passes that go on
	where   string                     // what the rank does, for errors
}

// underWay is an operation beside the passes.
type underWay struct {
	done <-chan struct{}
	wait func() error
	end  func() error // called by the rank when the operation is done; or nil
}

// step runs a plan. Each value is freed at the end of its live range, so a step leaves nothing behind.
func (r *Rank) step(ctx context.Context, of *prepared, parts []microBatch) (m train.Metrics, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p := &play{Rank: r, prepared: of, ctx: ctx, cancel: cancel, parts: parts, targets: map[int]*dtensor.Tensor{},
		storing: map[step.Value]int{}, begun: map[int]*underWay{}, streams: map[string]<-chan struct{}{},
		cuts: map[*segment]*cutRun{}, where: fmt.Sprintf("rank %d", r.world.Rank())}
	r.arrays.begin()
	r.traffic = &traffic{calls: map[*xla.Program]int{}, ran: map[needs]bool{}, sent: map[string]int64{}}
	ok := false
	defer func() {
		if thrown := recover(); thrown != nil {
			err = fmt.Errorf("%s: panic: %v\n%s", p.where, thrown, debug.Stack())
		} else if !ok && err == nil { // or other ranks would wait for it
			err = fmt.Errorf("%s: its goroutine was ended", p.where)
		}
		err = errors.Join(err, p.finish(err))
	}()
	for _, lanes := range p.lanes {
		for left := 1; left > 0; left = len(lanes[0]) + len(lanes[1]) {
			for k, s := range lanes {
				if lanes[k], err = p.takeTurn(s, k == 0 || len(lanes[0]) == 0); err != nil {
					return m, err
				}
			}
		}
	}
	end := len(p.plan.Ranks[r.own.rank])
	if err := p.await(end); err != nil {
		return m, err
	}
	if err := p.release(p.flow.Ends[end]); err != nil {
		return m, err
	}
	if m, err = p.report(); err == nil {
		err = p.recount()
	}
	ok = true
	return m, err
}

// recount makes a step with several updates count as one batch.
func (p *play) recount() error {
	if p.plan.Weights == step.Flush {
		return nil
	}
	at := len(p.cells) - 2
	counter, err := p.place(tensors.FromScalar(int32(p.steps+1)), p.own.cells[at].on)
	if err != nil {
		return err
	}
	return p.arrays.put(&p.cells[at], batchKind, counter)
}

// ended returns an error if the context has ended: the group's failure, which names the rank at fault, if there is one.
// If only this rank's caller ended the context, the other ranks learn of it here.
func (p *play) ended() error {
	if p.ctx.Err() == nil {
		return nil
	}
	if p.world.Size() > 1 {
		if err := group.Barrier(p.ctx, p.world); err != nil {
			return err
		}
	}
	return context.Cause(p.ctx)
}

// takeTurn runs segments of a lane, until one needs a tensor whose exchange began in this turn, and returns those that
// are left. Unless it sends, it also stops before operations between ranks.
func (p *play) takeTurn(lane []*segment, sends bool) (left []*segment, err error) {
	for ; len(lane) > 0 && (sends || lane[0].local); lane = lane[1:] {
		if err := p.ended(); err != nil {
			return lane, err
		}
		if more, err := p.carryOut(lane[0]); more || err != nil {
			return lane, err
		}
	}
	return lane, nil
}

// carryOut runs a segment, or a turn of it, and reports whether it goes on.
func (p *play) carryOut(s *segment) (more bool, err error) {
	for i := s.from; i < s.to; i++ {
		if err := p.await(i); err != nil {
			return false, err
		}
	}
	op := p.plan.Ranks[p.own.rank][s.from]
	switch {
	case s.local && (s.program != nil || p.minTime(s) > 0):
		more, err = p.compute(s)
	case !s.local && op.Kind != step.Wait:
		if err = p.begin(s, op); err != nil {
			err = fmt.Errorf("rank %d, in %s: %w", p.world.Rank(), p.plan.Text(op), err)
		}
	}
	if err == nil && !more {
		err = errors.Join(p.release(s.ended), p.forget(s.to))
	}
	return more, err
}

// await waits for the operations that must be done before the one at a position.
func (p *play) await(i int) error {
	for _, at := range p.waits[i] {
		u := p.begun[at]
		if u == nil {
			continue
		}
		op := p.plan.Ranks[p.own.rank][at]
		select {
		case <-u.done:
		default:
			end := p.span(trace.Wait, p.plan.Text(op))
			<-u.done
			end()
		}
		delete(p.begun, at)
		err := u.wait()
		if err == nil && u.end != nil {
			err = u.end()
		}
		if err != nil {
			return fmt.Errorf("rank %d, in %s: %w", p.world.Rank(), p.plan.Text(op), p.within(op, err))
		}
	}
	return nil
}

// within translates the rank in an error of an axis's group, which numbers its ranks differently.
func (p *play) within(op step.Op, err error) error {
	var failure *group.Failure
	if g := p.groups[op.Axis]; g == nil || g == p.world || !errors.As(err, &failure) || failure.Group == "" {
		return err
	}
	a, _ := p.plan.Axis(op.Axis)
	ranks := a.Group(p.own.rank)
	if failure.Rank < len(ranks) {
		return fmt.Errorf("rank %d, in a group of the ranks %v: %w", ranks[failure.Rank], ranks, err)
	}
	return fmt.Errorf("in a group of the ranks %v: %w", ranks, err)
}

// compute runs a segment's program, or a turn of it.
func (p *play) compute(s *segment) (more bool, err error) {
	first := firstPass(p.plan.Ranks[p.own.rank][s.from:s.to])
	p.where = fmt.Sprintf("rank %d, in %s", p.world.Rank(), p.describe(first))
	limit := cmp.Or(p.Timeout, group.DefaultTimeout)
	cut, isCut := s.program.(*cutProgram)
	if isCut || first.Kind == step.Update {
		limit *= 2 // it may wait for other ranks, and the group's error about these should come first
	}
	defer p.watch(p.where, limit)()
	if isCut { // whose programs have their own spans
		more, err = p.callCut(s, cut)
	} else {
		end, start := p.span(trace.Compute, p.plan.Text(first)), time.Now()
		if s.program != nil {
			err = p.call(s)
		}
		if least := p.minTime(s); least > 0 && err == nil {
			err = sleepUntil(p.ctx, start.Add(least))
		}
		end()
	}
	if late := context.Cause(p.ctx); late != nil && p.ctx.Err() != nil {
		err = errors.Join(err, late)
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w", p.where, err)
	}
	return more, nil
}

// minTime returns the minimal time of a segment's passes, which may have nothing to compute.
func (p *play) minTime(s *segment) (least time.Duration) {
	if p.Pace == nil {
		return 0
	}
	for _, op := range p.plan.Ranks[p.own.rank][s.from:s.to] {
		if op.Kind.Pass() {
			least += p.Pace(op)
		}
	}
	return least
}

// describe names an operation and its block.
func (p *play) describe(op step.Op) string {
	if op.Kind == step.Update {
		return p.plan.Text(op) + " (update)"
	}
	return fmt.Sprintf("%s (%s)", p.plan.Text(op), p.plan.Blocks[op.Block].Name)
}

// watch fails the group if the rank does not finish a pass in time: other ranks cannot tell which pass it is in.
func (p *play) watch(where string, limit time.Duration) (end func()) {
	told := make(chan struct{})
	timer := time.AfterFunc(limit, func() {
		defer close(told)
		p.cancel(fmt.Errorf("%s: it takes longer than %v", where, limit))
		_ = p.ended() // which tells the other ranks; this rank returns the same
	})
	return func() {
		if !timer.Stop() {
			<-told
		}
	}
}

func (p *play) call(s *segment) error {
	args, err := p.args(s)
	if err != nil {
		return err
	}
	out, err := p.invoke(s, args)
	if err != nil {
		return err
	}
	return p.assign(s, out)
}

// callCut runs a turn of a program with exchanges.
func (p *play) callCut(s *segment, c *cutProgram) (more bool, err error) {
	if p.cuts[s] == nil {
		args, err := p.args(s)
		if err != nil {
			return false, err
		}
		p.cuts[s] = p.startCut(c, s, args)
	}
	if more, err = p.cuts[s].takeTurn(); more && err == nil {
		return true, nil
	}
	run := p.cuts[s]
	delete(p.cuts, s)
	if err = errors.Join(err, run.finish(err)); err != nil {
		return false, err
	}
	return false, p.assign(s, run.out)
}

// args returns what a segment's program takes.
func (p *play) args(s *segment) (args []any, err error) {
	for _, x := range s.io.in {
		list, err := p.arg(x, s)
		if err != nil {
			return nil, err
		}
		args = append(args, list...)
	}
	return args, nil
}

// invoke calls a segment's program, after those that compute what ranks sum before it.
func (p *play) invoke(s *segment, args []any) ([]*dtensor.Tensor, error) {
	for i, one := range s.sums {
		out, err := p.run(one, slices.Clone(args)...)
		if err != nil {
			return nil, err
		}
		for k, t := range out {
			sum, err := p.addUp(t, s.phases[i].axes[k])
			if err != nil {
				return nil, err
			}
			args = append(args, sum)
		}
	}
	return p.run(s.program, args...)
}

// run calls a program, and counts the call.
func (p *play) run(one program, args ...any) ([]*dtensor.Tensor, error) {
	switch on := one.(type) {
	case *xla.Program:
		p.traffic.calls[on]++
		p.traffic.ran[on] = true
	case onDevice:
		p.traffic.ran[on.Portable] = true
	}
	return one.Call(args...)
}

// addUp sums a vector over the ranks along an axis, or over all ranks.
func (p *play) addUp(t *dtensor.Tensor, axis string) (*tensors.Tensor, error) {
	host, err := merged(t)
	if err := errors.Join(err, t.FinalizeAll()); err != nil {
		return nil, err
	}
	g := p.world
	if axis != "" {
		g = p.groups[axis]
	}
	var own error
	err = tensors.MutableFlatData(host, func(flat []float32) { own = group.AllReduce(p.ctx, g, flat, group.Sum) })
	return host, errors.Join(err, p.within(step.Op{Axis: axis}, own))
}

// report returns the loss and the metrics.
func (p *play) report() (m train.Metrics, err error) {
	loss := 0.0
	for _, t := range p.losses {
		loss += float64(tensors.ToScalar[float32](t.Shards()[0]))
	}
	if p.metrics != nil {
		if m, err = train.MetricsOf(p.metrics.Shards()[0]); err != nil {
			return m, err
		}
	}
	copies, _ := p.own.replicas()
	if !p.Sum {
		loss /= float64(p.plan.Micro * copies)
	}
	if p.world.Size() > 1 && p.server == nil {
		sum := []float64{loss}
		if err := group.AllReduce(p.ctx, p.world, sum, group.Sum); err != nil {
			return m, err
		}
		loss = sum[0]
	}
	m.Loss = loss
	return m, nil
}

// finish ends what is under way, and frees what remains.
func (p *play) finish(failed error) error {
	if failed != nil {
		p.cancel(failed)
		_ = p.ended()
	}
	var errs []error
	for _, run := range p.cuts {
		errs = append(errs, run.finish(failed))
	}
	for _, u := range p.begun {
		<-u.done
	}
	for _, last := range p.streams {
		<-last
	}
	for _, t := range p.targets {
		errs = append(errs, p.arrays.release(t))
	}
	return errors.Join(append(errs, p.arrays.release(p.losses...), p.arrays.release(p.metrics))...)
}

func (p *play) span(stream, name string) func() { return p.Trace.Start(p.world.Rank(), stream, name) }

// sleepUntil sleeps, more exactly than a timer: an idle Go program on Linux waits for timers in full milliseconds.
func sleepUntil(ctx context.Context, end time.Time) error {
	const late = time.Millisecond
	if d := time.Until(end); d > late {
		timer := time.NewTimer(d - late)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	for time.Now().Before(end) {
		runtime.Gosched()
	}
	return nil
}
