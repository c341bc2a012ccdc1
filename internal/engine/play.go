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
	"github.com/shardbook/shardbook/lib/memest"
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
	storing map[step.Value]int // values that are copied to the host, and freed after that
	begun   map[int]*underWay  // operations between ranks that are under way, by position
	streams map[string]*stream
	where   string // what the rank does, for errors
}

// underWay is an operation beside the passes.
type underWay struct {
	done <-chan struct{}
	wait func() error
	end  func() error // called by the rank when the operation is done; or nil
}

// step runs a plan. Each value is freed at the end of its live range, so a step leaves no more behind than there was
// before.
func (r *Rank) step(ctx context.Context, of *prepared, parts []microBatch) (m train.Metrics, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p := &play{Rank: r, prepared: of, ctx: ctx, cancel: cancel, parts: parts, targets: map[int]*dtensor.Tensor{},
		storing: map[step.Value]int{}, begun: map[int]*underWay{}, streams: map[string]*stream{}, where: fmt.Sprintf("rank %d", r.world.Rank())}
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
	for _, s := range p.segments {
		if err := p.ended(); err != nil {
			return m, err
		}
		if err := p.carryOut(s); err != nil {
			return m, err
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

// carryOut runs a segment.
func (p *play) carryOut(s *segment) error {
	for i := s.from; i < s.to; i++ {
		if err := p.await(i); err != nil {
			return err
		}
	}
	op := p.plan.Ranks[p.own.rank][s.from]
	var err error
	switch {
	case s.local && (s.program != nil || p.minTime(s) > 0):
		err = p.compute(s)
	case !s.local && op.Kind != step.Wait:
		if err = p.begin(s, op); err != nil {
			err = fmt.Errorf("rank %d, in %s: %w", p.world.Rank(), p.plan.Text(op), err)
		}
	}
	if err == nil {
		err = errors.Join(p.release(s.ended), p.forget(s.to))
	}
	return err
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

// release frees values at the end of their live range. Accumulated gradients are freed by what uses them.
func (p *play) release(ended []step.Value) error {
	var errs []error
	for _, v := range ended {
		if v.Held == step.Sum || v.Held == step.Reduced || v.Host {
			continue
		}
		if p.storing[v] > 0 {
			p.storing[v]--
			continue
		}
		errs = append(errs, p.arrays.release(p.values[v]...))
		delete(p.values, v)
	}
	return errors.Join(errs...)
}

// oldParams returns the parameters that a segment's pass uses, if they are not the newest.
func (p *play) oldParams(s *segment) []*dtensor.Tensor {
	if p.versions == nil {
		return nil
	}
	for i, op := range p.plan.Ranks[p.own.rank][s.from:s.to] {
		if op.Kind.Pass() && op.Kind != step.Update {
			return p.old[p.versions[s.from+i]]
		}
	}
	return nil
}

// forget frees the versions of parameters that no operation from a position on uses.
func (p *play) forget(from int) error {
	var errs []error
	for version, list := range p.old {
		if !p.uses(p.plan.Ranks[p.own.rank], from, version) {
			errs = append(errs, p.arrays.release(list...))
			delete(p.old, version)
		}
	}
	return errors.Join(errs...)
}

// passOf returns the first pass of a segment, or its first operation if it has no passes.
func (p *play) passOf(s *segment) step.Op {
	list := p.plan.Ranks[p.own.rank][s.from:s.to]
	return list[max(0, slices.IndexFunc(list, func(op step.Op) bool { return op.Kind.Pass() }))]
}

// compute runs a segment's program.
func (p *play) compute(s *segment) error {
	first := p.passOf(s)
	p.where = fmt.Sprintf("rank %d, in %s", p.world.Rank(), p.describe(first))
	limit := cmp.Or(p.Timeout, group.DefaultTimeout)
	_, cut := s.program.(*cutProgram)
	if cut || first.Kind == step.Update {
		limit *= 2 // it may wait for other ranks, and the group's error about these should come first
	}
	defer p.watch(p.where, limit)()
	end, start := func() {}, time.Now()
	if !cut { // whose programs have their own spans
		end = p.span(trace.Compute, p.plan.Text(first))
	}
	var err error
	if s.program != nil {
		err = p.call(s)
	}
	if least := p.minTime(s); least > 0 && err == nil {
		err = sleepUntil(p.ctx, start.Add(least))
	}
	end()
	if late := context.Cause(p.ctx); late != nil && p.ctx.Err() != nil {
		err = errors.Join(err, late)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", p.where, err)
	}
	return nil
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
	var args []any
	for _, x := range s.io.in {
		list, err := p.arg(x, s)
		if err != nil {
			return err
		}
		args = append(args, list...)
	}
	out, err := p.invoke(s, args)
	if err != nil {
		return err
	}
	return p.assign(s, out)
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
	if cut, ok := s.program.(*cutProgram); ok {
		return p.runCut(cut, p.plan.Text(p.passOf(s)), args)
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
	return host, p.addUpHost(host, axis)
}

// arg returns what is in a slot.
func (p *play) arg(x slot, s *segment) ([]any, error) {
	one := func(t *dtensor.Tensor, err error) ([]any, error) { return []any{t}, err }
	switch x.kind {
	case cellSlot:
		if old := p.oldParams(s); old != nil && p.own.ofParameters(x) {
			return []any{old[x.number]}, nil
		}
		return []any{p.cells[x.number]}, nil
	case freshSlot:
		return []any{p.gradsOf(x.number).fresh}, nil
	case sumSlot:
		return one(p.sumOf(x))
	case reducedSlot:
		return []any{p.gradsOf(x.number).reduced}, nil
	case touchedSlot:
		where := make([]int32, len(s.io.touched))
		for k, at := range s.io.touched {
			where[k] = int32(p.own.offset(at))
		}
		return []any{where}, nil
	case targetSlot:
		if p.targets[x.number] == nil {
			on, _ := p.own.lies(x, p.sizes)
			t, err := p.place(p.parts[x.number].Targets, on)
			if err != nil {
				return nil, err
			}
			p.arrays.add(batchKind, t)
			p.targets[x.number] = t
		}
		return []any{p.targets[x.number]}, nil
	case rowSlot:
		return []any{p.parts[x.number].Row}, nil
	case stepSlot:
		return []any{int32(p.steps)}, nil
	case shardSlot:
		return []any{int32(p.shardIndex)}, nil
	case ringSlot:
		return []any{int32(p.groups[p.Ring].Rank())}, nil
	case factorSlot:
		return []any{p.factor()}, nil
	}
	if x.value.Held == step.Input && x.value.Block == 0 && p.values[x.value] == nil {
		on, _ := p.own.lies(x, p.sizes)
		t, err := p.place(p.parts[x.value.Micro].Inputs, on)
		if err != nil {
			return nil, err
		}
		p.arrays.add(memest.Activations, t)
		p.values[x.value] = []*dtensor.Tensor{t}
	}
	list, ok := p.values[x.value]
	if _, all := p.own.lies(x, p.sizes); !ok && len(all) > 0 {
		return nil, fmt.Errorf("engine: %v is not there", x.value)
	}
	var args []any
	for _, t := range list {
		args = append(args, t)
	}
	return args, nil
}

// factor is what an update multiplies accumulated gradients by.
func (p *play) factor() float32 {
	if p.own.scalesEarly() {
		return 1
	}
	return float32(1 / float64(p.own.summands()))
}

func (p *play) gradsOf(unit int) *grads {
	if p.grads[unit] == nil {
		p.grads[unit] = &grads{}
	}
	return p.grads[unit]
}

// sumOf returns the matrix of a unit's accumulated gradients, with undefined elements if there are none.
func (p *play) sumOf(x slot) (*dtensor.Tensor, error) {
	g := p.gradsOf(x.number)
	if g.sum != nil {
		return g.sum, nil
	}
	on, shape := p.own.lies(x, p.sizes)
	full := shape[0].Clone()
	if p.own.sumsDiffer() {
		full.Dimensions[0] *= p.mesh.NumDevices()
	} else {
		full.Dimensions[0] *= p.own.units[x.number].cuts
	}
	var err error
	g.sum, err = p.arrays.borrow(memest.Gradients, full, on)
	return g.sum, err
}

// assign stores the results of a segment in their slots.
func (p *play) assign(s *segment, out []*dtensor.Tensor) error {
	var errs []error
	for _, x := range s.io.out {
		_, shapes := p.own.lies(x, p.sizes)
		mine := out[:len(shapes):len(shapes)]
		out = out[len(shapes):]
		switch x.kind {
		case cellSlot:
			old := p.cells[x.number]
			switch {
			case s.keepsOld && p.own.ofParameters(x):
				version := p.versions[s.to-1] - 1
				p.old[version] = append(p.old[version], old)
				p.arrays.add(memest.Parameters, mine[0])
			case slices.Contains(s.io.donated, x):
				p.arrays.changed(old, mine[0])
			default:
				p.arrays.changed(old, mine[0])
				errs = append(errs, old.FinalizeAll())
			}
			p.cells[x.number] = mine[0]
		case freshSlot:
			p.arrays.add(memest.Communication, mine[0])
			p.gradsOf(x.number).fresh = mine[0]
		case sumSlot:
			g := p.gradsOf(x.number)
			p.arrays.changed(g.sum, mine[0])
			g.sum = mine[0]
		case reducedSlot:
			g := p.gradsOf(x.number)
			if g.reduced != nil {
				p.arrays.changed(g.reduced, mine[0])
			} else {
				p.arrays.add(memest.Gradients, mine[0])
			}
			g.reduced = mine[0]
		case lossSlot:
			p.arrays.add(batchKind, mine[0])
			p.losses = append(p.losses, mine[0])
		case metricSlot:
			p.arrays.add(batchKind, mine[0])
			p.metrics = mine[0]
		default:
			errs = append(errs, p.arrays.release(p.values[x.value]...))
			p.values[x.value] = mine
			kind := memest.Activations
			if x.value.Held == step.Full {
				kind = memest.Communication
			}
			p.arrays.add(kind, mine...)
		}
	}
	for _, x := range s.io.in { // frees what was used up
		if slices.Contains(s.io.out, x) {
			continue
		}
		switch x.kind {
		case sumSlot:
			errs = append(errs, p.empty(x.number))
		case reducedSlot:
			g := p.gradsOf(x.number)
			errs = append(errs, p.arrays.release(g.reduced))
			g.reduced = nil
		case freshSlot:
			g := p.gradsOf(x.number)
			errs = append(errs, p.arrays.release(g.fresh))
			g.fresh = nil
		}
	}
	for _, op := range p.plan.Ranks[p.own.rank][s.from:s.to] {
		if op.Block == len(p.plan.Blocks)-1 && (op.Kind == step.Backward || op.Kind == step.WeightGrad) {
			errs = append(errs, p.arrays.release(p.targets[op.Micro]))
			delete(p.targets, op.Micro)
		}
	}
	return errors.Join(append(errs, freeAll(out)...)...)
}

// empty frees a unit's accumulated gradients.
func (p *play) empty(unit int) error {
	t := p.gradsOf(unit).sum
	p.forgetSum(unit)
	return p.arrays.release(t)
}

// forgetSum makes the next gradients of a unit begin a new sum.
func (p *play) forgetSum(unit int) {
	p.gradsOf(unit).sum = nil
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
	for _, u := range p.begun {
		<-u.done
	}
	for _, s := range p.streams {
		s.close()
	}
	for _, t := range p.targets {
		errs = append(errs, p.arrays.release(t))
	}
	return errors.Join(append(errs, p.arrays.release(p.losses...), p.arrays.release(p.metrics))...)
}

func (p *play) span(stream, name string) func() { return p.Trace.Start(p.world.Rank(), stream, name) }

// freeAll frees results that nothing uses.
func freeAll(list []*dtensor.Tensor) (errs []error) {
	for _, t := range list {
		errs = append(errs, t.FinalizeAll())
	}
	return errs
}

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
