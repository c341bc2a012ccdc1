package zero

import (
	"context"
	"errors"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/rank"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/offload"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/zero/residual"
)

// Rank is one of the ranks that train together, with a device of its own. It is not safe for use by several goroutines at
// once.
//
// A step that fails for a reason that the other ranks do not share, and any error of the group, leaves the rank lost: what
// is asked of it after is an error. The group's failure names the rank at fault (in hybrid sharding also by its number in a part of the
// group; where a rank has stalled there, others wait for it, and may be named for being late). Go on in a new group, from the last
// checkpoint: batches are functions of the step's number, so none is lost and none comes twice.
type Rank struct {
	engine *Engine
	*programs
	world    group.Group
	shard    group.Group // of the ranks that share a copy of the state
	replicas group.Group // of those that have the same shards of other copies; nil if there are none
	device   int
	memory   *ledger
	pool     *rank.Pool
	stash    *residual.Stash // of inputs of blocks between the passes; nil where they stay where they are

	held  heldBy[*tensors.Tensor]
	grads []*tensors.Tensor // by unit, summed so far: whole in stage 1, else shards; nil before there are any
	steps int
	lost  error

	onStream []*tensors.Tensor // whole gradients that tasks of the stream free, unless one before them has failed
}

// Join makes this process's rank of a group, which runs on one of the backend's devices, whose memory must be the host's.
// It is a collective call: all ranks begin with rank 0's initial parameters.
func (e *Engine) Join(ctx context.Context, g group.Group, device int) (*Rank, error) {
	r := &Rank{engine: e, world: g, shard: g, device: device, memory: newLedger(e.options.Trace, g.Rank()), pool: rank.NewPool(e.backend, device)}
	shards, err := e.options.shardsOf(g.Size())
	if err != nil {
		return nil, err
	}
	if shards < g.Size() {
		if r.shard, err = g.Split(ctx, g.Rank()/shards, g.Rank()); err == nil {
			r.replicas, err = g.Split(ctx, g.Rank()%shards, g.Rank())
		}
		if err != nil {
			return nil, err
		}
	}
	if r.programs, err = e.of(shards); err != nil {
		return nil, err
	}
	r.grads = make([]*tensors.Tensor, len(r.units))
	if where := e.options.Activations; where != offload.Device {
		own, err := group.New(1) // no other rank has the same
		if err == nil {
			r.stash, err = residual.NewStash(e.backend, device, own[0], where)
		}
		if err != nil {
			return nil, err
		}
	}
	initial, err := e.recipe.Initial()
	if err != nil {
		return nil, err
	}
	var state []*tensors.Tensor
	for i, want := range ranges(r.entries, r.shard.Rank()) {
		e := initial[i].MutableBytes(func(data []byte) { err = group.Broadcast(ctx, g, data, 0) })
		if err = errors.Join(err, e); err != nil {
			return nil, err
		}
		own, err := cutOut(initial[i], want)
		if err != nil {
			return nil, err
		}
		state = append(state, own)
	}
	if err := r.place(ctx, state); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// place takes a state, as vectors on the host, in place of the one that is there.
func (r *Rank) place(ctx context.Context, state []*tensors.Tensor) (err error) {
	next := heldBy[*tensors.Tensor]{}
	var fresh []*tensors.Tensor
	for _, u := range r.units {
		data, err := r.unitBytes(u, state)
		if err != nil {
			return err
		}
		vector, err := fromBytes(r.engine.policy.Params, data, u.size)
		if err != nil {
			return err
		}
		on, err := r.put(vector, false)
		if err != nil {
			return err
		}
		cast, err := r.cast.Call(r.device, on)
		if err = errors.Join(err, on.FinalizeAll()); err != nil {
			return err
		}
		fresh = append(fresh, cast[0])
		if r.engine.masters() {
			master, err := r.put(vector, r.engine.options.Offload)
			if err != nil {
				return err
			}
			next.masters = append(next.masters, master)
		}
	}
	for i, e := range r.entries[len(r.tree):] {
		data, err := bytesOf(state[len(r.tree)+i])
		if err != nil {
			return err
		}
		t, err := fromBytes(e.part.Shape.DType, data, e.part.Shape.Dimensions...)
		if err == nil {
			t, err = r.put(t, r.engine.options.Offload)
		}
		if err != nil {
			return err
		}
		next.rest = append(next.rest, t)
	}
	next.weights = r.held.weights
	old := heldBy[*tensors.Tensor]{masters: r.held.masters, rest: r.held.rest}
	r.held = next
	return errors.Join(r.renew(ctx, fresh), rank.Free(old.all()...))
}

// put puts a tensor of the host on the device, unless it is to stay.
func (r *Rank) put(t *tensors.Tensor, stay bool) (*tensors.Tensor, error) {
	if stay {
		return t, nil
	}
	return r.engine.backend.Put(t, r.device)
}

// renew takes new shards of the weights, in the type to compute in: stages 1 and 2 gather them.
func (r *Rank) renew(ctx context.Context, fresh []*tensors.Tensor) (err error) {
	if r.engine.options.Stage < 3 {
		defer func() { err = errors.Join(err, rank.Free(fresh...)) }() // what an error left
	}
	if r.held.weights == nil {
		r.held.weights = make([]*tensors.Tensor, len(r.units))
	}
	for i, own := range fresh {
		if r.engine.options.Stage == 3 {
			if err := rank.Free(r.held.weights[i]); err != nil {
				return err
			}
			r.held.weights[i] = own
			continue
		}
		if r.held.weights[i] == nil {
			var err error
			if r.held.weights[i], err = r.zeros(own.DType(), r.shards, r.units[i].size); err != nil {
				return err
			}
		}
		if err := errors.Join(r.gather(ctx, own, r.held.weights[i]), own.FinalizeAll()); err != nil {
			return err
		}
	}
	r.account()
	return nil
}

// account says what is held between steps.
func (r *Rank) account() {
	r.memory.set(memest.Parameters, r.held.weights...)
	r.memory.set(memest.Gradients, r.grads...)
	if !r.engine.options.Offload {
		r.memory.set(memest.Master, r.held.masters...)
		optimizer, _, _ := train.Tail(r.engine.recipe, r.held.rest)
		r.memory.set(memest.Optimizer, optimizer...)
	}
}

// Steps implements [Trainer].
func (r *Rank) Steps() int { return r.steps }

// Bytes implements [Trainer].
func (r *Rank) Bytes() Bytes { return r.memory.peaks() }

// kept returns the contents of the rank's shard of a unit, in the type that parameters are kept in.
func (r *Rank) kept(unit int) ([]byte, error) {
	if r.engine.masters() {
		return bytesOf(r.held.masters[unit])
	}
	data, err := bytesOf(r.held.weights[unit])
	if err == nil && r.engine.options.Stage < 3 {
		n, at := len(data)/r.shards, r.shard.Rank()
		data = data[at*n : (at+1)*n]
	}
	return data, err
}

// Params implements [Trainer].
func (r *Rank) Params(ctx context.Context) (params.Named[*tensors.Tensor], error) {
	if r.lost != nil {
		return nil, r.lost
	}
	units := make([][]byte, len(r.units))
	for i := range units {
		own, err := r.kept(i)
		if err != nil {
			return nil, r.lose(err)
		}
		units[i] = make([]byte, len(own)*r.shards)
		if err := group.AllGather(ctx, r.shard, own, units[i]); err != nil {
			return nil, r.lose(r.among(err))
		}
	}
	return r.wholeParams(units)
}

// lose remembers what the rank was lost by.
func (r *Rank) lose(by error) error {
	err := rank.LostBy("zero", r.world.Rank(), by)
	r.lost = err
	return errors.Join(err, r.Close())
}

// Close implements [Trainer]. It frees what the rank has, and waits for nobody.
func (r *Rank) Close() error {
	if r.lost == nil {
		r.lost = errors.New("zero: the rank is closed: join again")
	}
	err := errors.Join(rank.Free(r.held.all()...), rank.Free(r.grads...), r.pool.Close())
	r.held, r.grads = heldBy[*tensors.Tensor]{}, nil
	if r.stash != nil {
		err = errors.Join(err, r.stash.Close())
	}
	return err
}

var _, _ Trainer = (*Run)(nil), (*Rank)(nil)
