package paramserver

import (
	"errors"
	"slices"
	"sync"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/xla"
)

// shard is a bucket on its server.
type shard struct {
	client *client
	bucket int

	mu      sync.Mutex
	values  []*tensors.Tensor // the bucket's parameters, then their optimizer states
	updates int64
	seen    []int64           // by worker: the number of updates of the parameters that it pulled last
	waiting []*tensors.Tensor // by worker: gradients that wait for the other workers'
	here    int
}

// begin takes the shard's part of a full state.
func (sh *shard) begin(state []*tensors.Tensor) error {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if err := sh.free(); err != nil {
		return err
	}
	e := sh.client.engine
	for _, at := range e.places(sh.bucket) {
		v, err := e.backend.Put(state[at], sh.client.device)
		if err != nil {
			return err
		}
		sh.values = append(sh.values, v)
	}
	sh.updates = int64(tensors.ToScalar[int32](state[len(state)-1]))
	sh.seen = slices.Repeat([]int64{sh.updates}, sh.client.g.Size())
	sh.waiting = make([]*tensors.Tensor, len(sh.seen))
	return nil
}

// free frees the shard's device memory.
func (sh *shard) free() error {
	var errs []error
	for _, v := range sh.values {
		errs = append(errs, v.FinalizeAll())
	}
	sh.values = nil
	return errors.Join(errs...)
}

// places returns the indices, in the full state, of a bucket's parameters and then of their optimizer states.
func (e *Programs) places(bucket int) []int {
	places, all := slices.Clone(e.buckets[bucket].Places), e.recipe.State()
	for _, s := range optim.States(e.recipe.GroupedOptimizer(), e.own(bucket)) {
		places = append(places, all.Index(s.Name))
	}
	return places
}

// room returns a buffer for a worker's gradients.
func (sh *shard) room() *tensors.Tensor {
	e := sh.client.engine
	return tensors.FromShape(shapes.Make(e.policy.Reduce, e.buckets[sh.bucket].Size))
}

// answer is the reply to a worker's gradients.
type answer struct {
	bucket    int
	staleness int64
	params    []byte // in the type and layout of the gradients
}

// take updates the parameters with a worker's gradients, or, if not asynchronous, with all workers' once the last has
// arrived. It returns the answers by worker.
func (sh *shard) take(worker int, grads *tensors.Tensor) (map[int]answer, error) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.waiting[worker] = grads
	sh.here++
	workers := []int{worker}
	if !sh.client.engine.options.Async {
		if sh.here < len(sh.waiting) {
			return nil, nil
		}
		workers = workers[:0]
		for w := range sh.waiting {
			workers = append(workers, w)
		}
	}
	sh.here = 0
	var summands []any // in the order of the ranks
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

// update applies the sum of gradients, and returns the new parameters.
func (sh *shard) update(grads []any) (now []byte, err error) {
	e, device := sh.client.engine, sh.client.device
	defer e.options.Trace.Start(sh.client.g.Rank(), trace.Compute, "server's update")()
	var args []any
	for _, v := range sh.values {
		args = append(args, v)
	}
	divisor := float64(len(grads) * e.options.Accumulate)
	if e.options.SumLoss {
		divisor = 1
	}
	sum, err := e.sum.Call(device, grads...)
	if err != nil {
		return nil, err
	}
	out, err := e.updates[sh.bucket].Call(device, append(args, int32(sh.updates+1), float32(1/divisor), sum[0])...)
	if err = errors.Join(err, sum[0].FinalizeAll()); err != nil {
		return nil, err
	}
	n := len(out) - 1
	sh.values = out[:n]
	sh.updates++
	err = out[n].ConstBytes(func(flat []byte) { now = slices.Clone(flat) })
	return now, errors.Join(err, out[n].FinalizeAll())
}

// compileServers compiles the servers' programs: the sum of gradients, and an update for each bucket. An update takes
// the parameters, their states, the number of the update, the factor for the gradients and their sum; it returns new
// parameters and states, and the parameters in the layout of the gradients. The sum is that of an all-reduce between
// goroutines: in the order of the ranks, in float32, rounded once. It is a separate program so that updates are
// compiled like those of a full state, to the same bits.
func (e *Programs) compileServers() (err error) {
	if e.sum, err = xla.CompilePortable(e.backend, func(grads []*graph.Node) []*graph.Node {
		sum := graph.ConvertDType(grads[0], dtypes.Float32)
		for _, g := range grads[1:] {
			sum = graph.Add(sum, graph.ConvertDType(g, dtypes.Float32))
		}
		return []*graph.Node{graph.ConvertDType(sum, e.policy.Reduce)}
	}); err != nil {
		return err
	}
	for b, bucket := range e.buckets {
		own := e.own(b)
		states := len(optim.States(e.recipe.GroupedOptimizer(), own))
		donated := make([]int, len(own)+states)
		for i := range donated {
			donated[i] = i
		}
		p, err := xla.CompilePortable(e.backend, func(in []*graph.Node) []*graph.Node {
			weights, in := in[:len(own)], in[len(own):]
			state, number, factor, sum := in[:states], in[states], in[states+1], in[states+2]
			grads, flat := make([]*graph.Node, len(own)), make([]*graph.Node, len(own))
			for i, s := range own {
				x := graph.Slice(sum, graph.AxisRange(bucket.Offsets[i], bucket.Offsets[i]+s.Size()))
				x = graph.Mul(graph.ConvertDType(x, dtypes.Float32), factor) // in float32, whatever the type
				grads[i] = graph.Reshape(graph.ConvertDType(x, sum.DType()), s.Shape.Dimensions...)
			}
			weights, state = optim.Apply(e.recipe.GroupedOptimizer(), own, weights, grads, state, number)
			for i, w := range weights {
				flat[i] = graph.Reshape(graph.ConvertDType(w, sum.DType()), w.Shape().Size())
			}
			return append(append(slices.Clone(weights), state...), graph.Concatenate(flat, 0))
		}, donated...)
		if err != nil {
			return err
		}
		e.updates = append(e.updates, p)
	}
	return nil
}
