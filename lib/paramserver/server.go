package paramserver

import (
	"errors"
	"sync"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/rank"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/trace"
)

// servers is how many ranks have one. Bucket b is that of rank b modulo servers.
func (r *Rank) servers() int {
	if n := r.engine.options.Servers; n > 0 {
		return n
	}
	return r.g.Size()
}

// shard is a bucket on its server.
type shard struct {
	rank   *Rank
	bucket int

	mu      sync.Mutex
	values  []*tensors.Tensor // the bucket's parameters, and then their states
	updates int64
	seen    []int64           // by worker: the updates that the parameters had when it got them
	waiting []*tensors.Tensor // by worker: gradients that wait for those of the others
	here    int
}

func newShard(r *Rank, bucket int, state []*tensors.Tensor) (*shard, error) {
	sh := &shard{rank: r, bucket: bucket, seen: make([]int64, r.g.Size()), waiting: make([]*tensors.Tensor, r.g.Size())}
	for _, at := range r.places(bucket) {
		v, err := r.engine.backend.Put(state[at], r.device)
		if err != nil {
			return nil, err
		}
		sh.values = append(sh.values, v)
	}
	sh.updates = int64(tensors.ToScalar[int32](state[len(state)-1]))
	for w := range sh.seen {
		sh.seen[w] = sh.updates
	}
	return sh, nil
}

// places are those of a bucket's parameters, and then of their states, in the whole state.
func (r *Rank) places(bucket int) []int {
	e := r.engine
	places, all := append([]int{}, e.buckets[bucket].Places...), e.recipe.State()
	for _, s := range optim.States(e.recipe.Optimizer(), e.own(bucket)) {
		places = append(places, all.Index(s.Name))
	}
	return places
}

// own lists a bucket's parameters in the type that they are kept in.
func (e *Engine) own(bucket int) params.Tree { return e.buckets[bucket].Params.As(e.policy.Params) }

// room is a buffer for a worker's gradients.
func (sh *shard) room() (*tensors.Tensor, group.Type, group.Buffer, error) {
	e := sh.rank.engine
	empty := tensors.FromShape(shapes.Make(e.policy.Reduce, e.buckets[sh.bucket].Size))
	t, err := e.backend.Put(empty, sh.rank.device)
	if err != nil {
		return nil, 0, group.Buffer{}, err
	}
	kind, data, err := rank.Memory(t)
	return t, kind, data, err
}

// answer is what a worker gets for its gradients.
type answer struct {
	bucket    int
	staleness int64
	params    []byte
}

// take takes a worker's gradients, and updates the parameters with them or, where all are to be waited for, with the last
// worker's. It returns the answers to workers.
func (sh *shard) take(worker int, grads *tensors.Tensor) (map[int]answer, error) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.waiting[worker] = grads
	sh.here++
	workers := []int{worker}
	if !sh.rank.engine.options.Async {
		if sh.here < len(sh.waiting) {
			return nil, nil
		}
		workers = workers[:0]
		for w := range sh.waiting {
			workers = append(workers, w)
		}
	}
	sh.here = 0
	var summands []*tensors.Tensor // in the order of the ranks
	for _, w := range workers {
		summands = append(summands, sh.waiting[w])
		sh.waiting[w] = nil
	}
	before := sh.updates
	now, err := sh.update(summands)
	if err != nil {
		return nil, err
	}
	answers := map[int]answer{}
	for _, w := range workers {
		answers[w] = answer{sh.bucket, before - sh.seen[w], now}
		sh.seen[w] = sh.updates
	}
	return answers, nil
}

// update applies the sum of gradients, and returns the new parameters, one after another.
func (sh *shard) update(grads []*tensors.Tensor) (now []byte, err error) {
	r := sh.rank
	defer r.span(trace.Compute, "server's update")()
	var args []any
	for _, v := range sh.values {
		args = append(args, v)
	}
	divisor := float64(len(grads) * r.engine.options.Accumulate)
	if r.engine.options.SumLoss {
		divisor = 1
	}
	sum, err := r.engine.sumOf(r.device, grads)
	if err != nil {
		return nil, err
	}
	args = append(args, int32(sh.updates+1), float32(1/divisor), sum)
	sh.values, err = r.engine.servers[sh.bucket].Call(r.device, args...)
	if err = errors.Join(err, rank.Free(sum)); err != nil {
		return nil, err
	}
	sh.updates++
	for i := range r.engine.buckets[sh.bucket].Places {
		kind, data, err := rank.Memory(sh.values[i])
		if err != nil {
			return nil, err
		}
		now = append(now, rank.Bytes(kind, data)...)
	}
	return now, nil
}

// sumOf returns the sum of gradients, and frees them. It is that of an all-reduce between goroutines: in the order of the
// ranks, in float32, rounded once.
func (e *Engine) sumOf(device int, grads []*tensors.Tensor) (*tensors.Tensor, error) {
	if len(grads) == 1 {
		return grads[0], nil
	}
	args := make([]any, len(grads))
	for i, g := range grads {
		args[i] = g
	}
	out, err := e.sum.Call(device, args...)
	if err = errors.Join(err, rank.Free(grads...)); err != nil {
		return nil, err
	}
	return out[0], nil
}

// compileServers makes the programs of servers: the sum, and for each bucket one that makes, from its parameters, their
// states, the number of the update, the factor of the gradients, and these, new parameters and states.
// The sum is a program of its own so that the update is compiled as that of the whole state is, to the same bits.
func (e *Engine) compileServers() (err error) {
	if e.sum, err = e.program(func(grads []*graph.Node) []*graph.Node {
		sum := graph.ConvertDType(grads[0], dtypes.Float32)
		for _, g := range grads[1:] {
			sum = graph.Add(sum, graph.ConvertDType(g, dtypes.Float32))
		}
		return []*graph.Node{graph.ConvertDType(sum, e.policy.Reduce)}
	}); err != nil {
		return err
	}
	for b := range e.buckets {
		own := e.own(b)
		states := len(optim.States(e.recipe.Optimizer(), own))
		p, err := e.program(func(in []*graph.Node) []*graph.Node {
			weights, in := in[:len(own)], in[len(own):]
			kept, number, factor, grads := in[:states], in[states], in[states+1], in[states+2]
			views := make([]*graph.Node, len(own))
			for i, s := range own {
				views[i] = view(grads, e.buckets[b].Offsets[i], s.Shape.Dimensions, factor)
			}
			weights, kept = optim.Apply(e.recipe.Optimizer(), own, weights, views, kept, number)
			return append(append([]*graph.Node{}, weights...), kept...)
		}, rank.Firsts(len(own)+states)...)
		if err != nil {
			return err
		}
		e.servers = append(e.servers, p)
	}
	return nil
}
