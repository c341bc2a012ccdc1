package ddp

import (
	"context"
	"errors"
	"sync"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/xla"
)

// A worker sends a server a word, the number of a bucket, and then its gradients; the server answers with two, the number
// and how stale they were, and the bucket's new parameters, as soon as it can. leaving is the word of a worker that will
// send no more.
const leaving = -1

// servers is how many ranks have one. Bucket b is that of rank b modulo servers.
func (r *Rank) servers() int {
	if n := r.engine.options.Servers; n > 0 {
		return n
	}
	return r.g.Size()
}

// server has some buckets' parameters and optimizer states, for all ranks.
type server struct {
	rank    *Rank
	ctx     context.Context
	shards  map[int]*shard // by bucket
	answers []chan answer  // by worker
	loops   sync.WaitGroup

	mu  sync.Mutex
	err error // the first of any loop
}

// answer is what a worker is sent.
type answer struct {
	bucket    int
	staleness int64
	params    []byte
	err       error
}

// newServer makes a rank's server. state is the whole state, on the rank's device; the server copies what is its own.
func newServer(ctx context.Context, r *Rank, state []*tensors.Tensor) (*server, error) {
	s := &server{rank: r, ctx: ctx, shards: map[int]*shard{}}
	for b := range r.engine.buckets {
		if b%r.servers() != r.g.Rank() {
			continue
		}
		sh, err := newShard(r, b, state)
		if err != nil {
			return nil, err
		}
		s.shards[b] = sh
	}
	for range r.g.Size() {
		s.answers = append(s.answers, make(chan answer, len(s.shards))) // a worker has at most so many to come
	}
	return s, nil
}

// run serves the other ranks in the background, until each of them leaves.
func (s *server) run() {
	for w := range s.rank.g.Size() {
		if w == s.rank.g.Rank() {
			continue
		}
		s.loops.Go(func() { s.note(s.receive(w)); close(s.answers[w]) })
		s.loops.Go(func() { s.note(s.send(w)) })
	}
}

func (s *server) note(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
}

func (s *server) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// receive takes what a worker sends.
func (s *server) receive(w int) error {
	g := s.rank.g
	for {
		word := []int64{0}
		if err := group.Recv(s.ctx, g, word, w); err != nil {
			return err
		}
		if word[0] == leaving {
			return nil
		}
		sh := s.shards[int(word[0])]
		into, kind, data, err := sh.room()
		if err != nil {
			return err
		}
		if err := g.Do(s.ctx, group.Call{Kind: group.KindRecv, Type: kind, Peer: w, Out: data}); err != nil {
			return err
		}
		s.take(sh, w, into)
	}
}

// take gives a worker's gradients to their shard, and the answers to those who wait for them.
func (s *server) take(sh *shard, worker int, grads *tensors.Tensor) {
	for w, a := range sh.take(worker, grads) {
		s.answers[w] <- a
	}
}

// send answers a worker.
func (s *server) send(w int) error {
	for a := range s.answers[w] {
		if a.err != nil {
			return a.err
		}
		if err := group.Send(s.ctx, s.rank.g, []int64{int64(a.bucket), a.staleness}, w); err != nil {
			return err
		}
		if err := group.Send(s.ctx, s.rank.g, a.params, w); err != nil {
			return err
		}
	}
	return nil
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
	for _, at := range sh.places() {
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

// places are those of the bucket's parameters, and then of their states, in the whole state.
func (sh *shard) places() []int {
	e := sh.rank.engine
	places, all := append([]int{}, e.buckets[sh.bucket].Places...), e.recipe.State()
	for _, s := range optim.States(e.recipe.Rule, e.own(sh.bucket)) {
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
	kind, data, err := buffer(t)
	return t, kind, data, err
}

// take takes a worker's gradients, and updates the parameters with them or, where all are to be waited for, with the last
// worker's. It returns the answers to workers.
func (sh *shard) take(worker int, grads *tensors.Tensor) map[int]answer {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.waiting[worker] = grads
	sh.here++
	workers := []int{worker}
	if sh.rank.engine.options.Sync == Server {
		if sh.here < len(sh.waiting) {
			return nil
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
	answers := map[int]answer{}
	for _, w := range workers {
		answers[w] = answer{bucket: sh.bucket, staleness: before - sh.seen[w], params: now, err: err}
		sh.seen[w] = sh.updates
	}
	return answers
}

// update applies the sum of gradients, and returns the new parameters, one after another.
func (sh *shard) update(grads []*tensors.Tensor) (now []byte, err error) {
	r := sh.rank
	defer r.span(trace.Compute, "server's update")()
	defer func() { err = errors.Join(err, free(grads)) }()
	var args []any
	for _, v := range sh.values {
		args = append(args, v)
	}
	divisor := float64(len(grads) * r.engine.options.Accumulate)
	if r.engine.options.SumLoss {
		divisor = 1
	}
	args = append(args, int32(sh.updates+1), float32(divisor))
	for _, g := range grads {
		args = append(args, g)
	}
	if sh.values, err = r.engine.servers[sh.bucket].Call(r.device, args...); err != nil {
		return nil, err
	}
	sh.updates++
	for i := range r.engine.buckets[sh.bucket].Places {
		kind, data, err := buffer(sh.values[i])
		if err != nil {
			return nil, err
		}
		now = append(now, bytesOf(kind, data)...)
	}
	return now, nil
}

// compileServers makes the programs of servers, one for each bucket: from its parameters, their states, the number of the
// update, the number by which gradients are divided, and gradients to sum, to new parameters and states. The sum is that
// of an all-reduce between goroutines: in the order of the ranks, in float32, rounded once.
func (e *Engine) compileServers() error {
	for b := range e.buckets {
		own := e.own(b)
		states := len(optim.States(e.recipe.Rule, own))
		donated := make([]int, len(own)+states)
		for i := range donated {
			donated[i] = i
		}
		p, err := xla.CompilePortable(e.backend, func(in []*graph.Node) []*graph.Node {
			weights, in := in[:len(own)], in[len(own):]
			kept, number, count, grads := in[:states], in[states], in[states+1], in[states+2:]
			sum := graph.ConvertDType(grads[0], dtypes.Float32)
			for _, g := range grads[1:] {
				sum = graph.Add(sum, graph.ConvertDType(g, dtypes.Float32))
			}
			sum = precision.Cast([]*graph.Node{sum}, e.policy.Reduce)[0]
			views := make([]*graph.Node, len(own))
			for i, s := range own {
				views[i] = view(sum, e.buckets[b].Offsets[i], s.Shape.Dimensions, count)
			}
			weights, kept = optim.Apply(e.recipe.Rule, own, weights, views, kept, number)
			return append(append([]*graph.Node{}, weights...), kept...)
		}, donated...)
		if err != nil {
			return err
		}
		e.servers = append(e.servers, p)
	}
	return nil
}
