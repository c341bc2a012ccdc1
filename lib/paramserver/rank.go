package paramserver

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/rank"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/train"
)

// Rank is one of the ranks that train together. It is not safe for use by several goroutines at once.
//
// A step that fails for a reason that the other ranks do not share, and any error of the group, leaves the rank lost: what
// is asked of it after is an error. The group's failure names the rank at fault. (Asynchronous ranks notice in the next call that
// all make, such as [Mean]. Where one has stalled in mid-step, others may wait for its answers, and be late themselves: the
// failure then names one of these and lists them all.) Go on in a new group, from the last checkpoint: batches are functions
// of the step's number, so none is lost and none comes twice.
type Rank struct {
	engine  *Engine
	g       group.Group
	device  int
	state   []*tensors.Tensor // the parameters
	buckets []*tensors.Tensor
	client  *client
	sends   []chan struct{} // by receiver: full while a message and its data are sent
	steps   int
	lost    error

	mu    sync.Mutex
	bytes int64 // communicated
}

// Metrics is what a step reports.
type Metrics struct {
	// Metrics are those of the rank: the loss is that of its own rows, before the update; [Mean] gives the whole
	// batch's. Only the loss is there.
	train.Metrics
	// Staleness is how many updates by other ranks' gradients a parameter had seen, when the rank's gradient was applied
	// to it, that the rank had not: the mean over the buckets. Only [Options.Async] has any.
	Staleness float64
}

// Join makes this process's rank of a group, which runs on one of the backend's devices, whose memory must be the host's.
// It is a collective call: all ranks get rank 0's state, which is the recipe's initial one. Servers run until the rank is
// closed or the context ends.
func (e *Engine) Join(ctx context.Context, g group.Group, device int) (*Rank, error) {
	r := &Rank{engine: e, g: g, device: device, sends: make([]chan struct{}, g.Size())}
	for to := range r.sends {
		r.sends[to] = make(chan struct{}, 1)
	}
	if servers := e.options.Servers; servers > g.Size() {
		return nil, fmt.Errorf("paramserver: Options.Servers is %d in a group of %d ranks: set it to at most that, or to 0 for all", servers, g.Size())
	}
	initial, err := e.recipe.Initial()
	if err != nil {
		return nil, err
	}
	if err := r.spread(ctx, initial); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// spread gives all ranks rank 0's state, and takes it.
func (r *Rank) spread(ctx context.Context, state []*tensors.Tensor) error {
	placed := make([]*tensors.Tensor, len(state))
	for i, v := range state {
		var err error
		if placed[i], err = r.engine.backend.Put(v, r.device); err != nil {
			return errors.Join(err, rank.Free(placed[:i]...))
		}
	}
	err := r.broadcast(ctx, placed, 0)
	if err != nil {
		return errors.Join(err, rank.Free(placed...))
	}
	return r.serve(ctx, placed)
}

// broadcast copies a rank's tensors to all others'.
func (r *Rank) broadcast(ctx context.Context, values []*tensors.Tensor, root int) error {
	for _, v := range values {
		kind, data, err := rank.Memory(v)
		if err != nil {
			return err
		}
		if err := r.g.Do(ctx, group.Call{Kind: group.KindBroadcast, Type: kind, Peer: root, In: data, Out: data}); err != nil {
			return err
		}
	}
	return nil
}

// Step trains on one batch, inputs and targets of shape (B,T): the same on all ranks, each of which takes its part of the
// rows, the first rank the first. A B that the ranks, times Options.Accumulate, do not divide is an error.
func (r *Rank) Step(ctx context.Context, inputs, targets *tensors.Tensor) (Metrics, error) {
	if r.lost != nil {
		return Metrics{}, r.lost
	}
	if err := train.CheckBatch(r.engine.recipe.Model, inputs, targets); err != nil {
		return Metrics{}, err
	}
	parts, err := rank.MicroBatches(inputs, targets, r.g.Rank(), r.g.Size(), r.engine.options.Accumulate)
	if err != nil {
		return Metrics{}, err
	}
	m, err := r.step(ctx, parts)
	if err != nil {
		return Metrics{}, r.lose(fmt.Errorf("step %d: %w", r.steps, err))
	}
	r.steps++
	return m, nil
}

func (r *Rank) step(ctx context.Context, parts []rank.MicroBatch) (m Metrics, err error) {
	if err := r.engine.kinds.Check(r.engine.backend.Text, r.engine.passes, parts[0].Inputs.Shape()); err != nil {
		return m, err
	}
	if err := r.makeBuckets(); err != nil {
		return m, err
	}
	s := r.newStep(ctx, len(parts))
	loss, err := s.passes(parts)
	if err := errors.Join(s.finish(), err); err != nil { // the failure of the group explains what comes of it
		return m, err
	}
	m.Loss, m.Scale = loss, 1
	m.Staleness, err = r.client.pull(ctx)
	return m, err // the servers have made the update
}

// counted is a view of the group that counts what calls are given to send or to reduce.
func (r *Rank) counted() group.Group {
	if r.engine.options.Trace == nil {
		return r.g
	}
	return counted{r.g, r}
}

type counted struct {
	group.Group
	rank *Rank
}

// Do makes a call.
func (c counted) Do(ctx context.Context, call group.Call) error {
	c.rank.mu.Lock()
	c.rank.bytes += int64(call.In.Len * call.Type.Size())
	c.rank.engine.options.Trace.Count(c.rank.g.Rank(), "bytes communicated", c.rank.bytes)
	c.rank.mu.Unlock()
	return c.Group.Do(ctx, call)
}

func (r *Rank) span(stream, name string) func() {
	return r.engine.options.Trace.Start(r.g.Rank(), stream, name)
}

// Steps is the number of batches trained on, and so the number of the next one, from 0.
func (r *Rank) Steps() int { return r.steps }

// Params returns copies of the parameters as the rank has them, by the names of the model's list and in the type that
// they are kept in.
func (r *Rank) Params() (params.Named[*tensors.Tensor], error) {
	if r.lost != nil {
		return nil, r.lost
	}
	copies := params.Named[*tensors.Tensor]{}
	for i, s := range r.engine.tree {
		var err error
		if copies[s.Name], err = r.state[i].LocalClone(); err != nil {
			return nil, err
		}
	}
	return copies, nil
}

// Mean returns the mean of a number over the ranks, such as the loss of the whole batch. It is a collective call.
func Mean(ctx context.Context, g group.Group, x float64) (float64, error) {
	sum := []float64{x}
	err := group.AllReduce(ctx, g, sum, group.Mean)
	return sum[0], err
}

// lose remembers what the rank was lost by.
func (r *Rank) lose(by error) error {
	err := rank.LostBy("paramserver", r.g.Rank(), by)
	r.lost = err
	return errors.Join(err, r.Close())
}

// Close frees what the rank has on its device. It is a collective call, in which each rank waits until the
// others need its server no more, however long that takes: where one may be gone, let [Mean] tell first. A rank that fails
// for reasons of its own returns rather than closes; it may close when the group has ended.
func (r *Rank) Close() error {
	var err error
	if r.client != nil {
		err = r.client.close(r.lost)
		r.client = nil
	}
	err = errors.Join(err, rank.Free(r.state...), rank.Free(r.buckets...))
	r.state, r.buckets = nil, nil
	if r.lost == nil {
		r.lost = errors.New("paramserver: the rank is closed: join again")
	}
	return err
}

// makeBuckets makes the buffers of the buckets.
func (r *Rank) makeBuckets() error {
	for _, b := range r.engine.buckets[len(r.buckets):] {
		t, err := params.Zeros(params.Tree{params.New("bucket", r.engine.policy.Reduce, b.Size)})
		if err != nil {
			return err
		}
		placed, err := r.engine.backend.Put(t[0], r.device)
		if err != nil {
			return err
		}
		r.buckets = append(r.buckets, placed)
	}
	return nil
}
