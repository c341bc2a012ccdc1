package main

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/collective/mpi"
	"github.com/shardbook/shardbook/lib/collective/plan"
)

// rankSubject is one rank of a group.
type rankSubject struct {
	ctx context.Context
	group.Group
	ops []string // those that it is measured with
	collectiveCase
	in, out []float32
}

func (s *rankSubject) prepare(params []byte) (facts, error) {
	if err := json.Unmarshal(params, &s.collectiveCase); err != nil {
		return facts{}, err
	}
	if !slices.Contains(s.ops, s.Op) {
		return facts{}, errUnsupported("it has no " + s.Op)
	}
	in, out := s.counts()
	s.in, s.out = make([]float32, in), make([]float32, out)
	return facts{}, s.verify()
}

// do makes a call.
func (s *rankSubject) do() error {
	switch s.Op {
	case "all-reduce":
		return group.AllReduce(s.ctx, s.Group, s.in, group.Sum)
	case "reduce-scatter":
		return group.ReduceScatter(s.ctx, s.Group, s.in, s.out, group.Sum)
	case "all-gather":
		return group.AllGather(s.ctx, s.Group, s.in, s.out)
	case "all-to-all":
		return group.AllToAll(s.ctx, s.Group, s.in, s.out)
	}
	return group.Broadcast(s.ctx, s.Group, s.in, 0)
}

func (s *rankSubject) sample(calls int) (float64, error) {
	s.fillInput(s.in, s.Rank())
	err := errors.Join(s.do(), group.Barrier(s.ctx, s.Group)) // the first call after a pause is slow
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	for range calls {
		if err := s.do(); err != nil {
			return 0, err
		}
	}
	return milliseconds(begin, calls), nil
}

func (s *rankSubject) finish() error {
	err := s.verify()
	s.in, s.out = nil, nil
	return err
}

// verify makes one call and checks its result.
func (s *rankSubject) verify() error {
	s.fillInput(s.in, s.Rank())
	clear(s.out)
	if err := s.do(); err != nil {
		return err
	}
	if len(s.out) == 0 {
		return s.check(s.in, s.Rank())
	}
	return s.check(s.out, s.Rank())
}

func (b *collectives) serveGroup(ctx context.Context) (subject, func(), error) {
	return serveRanks(b.ranks, func(g group.Group) (subject, error) {
		return &rankSubject{ctx: ctx, Group: g, ops: collectiveOps}, nil
	})
}

func (b *collectives) serveRing(ctx context.Context) (subject, func(), error) {
	return serveRanks(b.ranks, func(g group.Group) (subject, error) {
		ring, err := group.ByPlan(g, plan.Ring)
		return &rankSubject{ctx: ctx, Group: ring, ops: []string{"all-reduce"}}, err
	})
}

// serveMPI makes this process one rank of a job that mpirun started. It works where
// the program was built with the tag mpi.
func serveMPI(ctx context.Context) (subject, func(), error) {
	job, err := mpi.World()
	if err != nil {
		return nil, nil, err
	}
	return &rankSubject{ctx: ctx, Group: job, ops: collectiveOps}, func() { job.Close() }, nil
}

// serveRanks makes a subject of n ranks, each a goroutine.
func serveRanks(n int, rank func(group.Group) (subject, error)) (subject, func(), error) {
	groups, err := group.New(n)
	if err != nil {
		return nil, nil, err
	}
	all := make(together, n)
	for i, g := range groups {
		s, err := rank(g)
		if err != nil {
			return nil, nil, err
		}
		all[i] = s
	}
	return all, func() {}, nil
}

// together is a subject whose ranks are goroutines of this process.
type together []subject

// each has every rank do something at the same time, and returns the time of the slowest.
func (t together) each(do func(subject) (float64, error)) (float64, error) {
	times, errs := make([]float64, len(t)), make([]error, len(t))
	var working sync.WaitGroup
	for i, s := range t {
		working.Go(func() { times[i], errs[i] = do(s) })
	}
	working.Wait()
	return slices.Max(times), errors.Join(errs...)
}

func (t together) prepare(params []byte) (facts, error) {
	_, err := t.each(func(s subject) (float64, error) {
		_, err := s.prepare(params)
		return 0, err
	})
	return facts{}, err
}

func (t together) sample(calls int) (float64, error) {
	return t.each(func(s subject) (float64, error) { return s.sample(calls) })
}

func (t together) finish() error {
	_, err := t.each(func(s subject) (float64, error) { return 0, s.finish() })
	return err
}
