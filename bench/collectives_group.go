package main

import (
	"context"
	"net"

	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/collective/mpi"
	"github.com/shardbook/shardbook/lib/collective/plan"
)

// groupEngine calls the operations of a group.
type groupEngine struct {
	ctx context.Context
	g   group.Group
}

func (e groupEngine) barrier() error { return group.Barrier(e.ctx, e.g) }

func (e groupEngine) do(op string, in, out []float32) error {
	switch op {
	case "all-reduce":
		return group.AllReduce(e.ctx, e.g, in, group.Sum)
	case "reduce-scatter":
		return group.ReduceScatter(e.ctx, e.g, in, out, group.Sum)
	case "all-gather":
		return group.AllGather(e.ctx, e.g, in, out)
	case "all-to-all":
		return group.AllToAll(e.ctx, e.g, in, out)
	case "broadcast":
		return group.Broadcast(e.ctx, e.g, in, 0)
	}
	return errUnsupported(op)
}

// ringEngine runs the ring's plan of an all-reduce.
type ringEngine struct {
	groupEngine
	ring *plan.Plan
}

func (e ringEngine) do(op string, in, _ []float32) error {
	if op != "all-reduce" {
		return errUnsupported("only all-reduce is measured by its plan")
	}
	return group.RunPlan(e.ctx, e.g, e.ring, in, group.Sum)
}

func (b *collectives) serveGroup(ctx context.Context) (subject, func(), error) {
	return serveRanks(b.ranks, func(g group.Group) subject {
		return &rankSubject{number: g.Rank(), engine: groupEngine{ctx, g}}
	})
}

func (b *collectives) serveRing(ctx context.Context) (subject, func(), error) {
	ring, err := plan.New(plan.AllReduce, plan.Ring, b.ranks)
	if err != nil {
		return nil, nil, err
	}
	return serveRanks(b.ranks, func(g group.Group) subject {
		return &rankSubject{number: g.Rank(), engine: ringEngine{groupEngine{ctx, g}, ring}}
	})
}

// serveRanks makes a subject of a group's ranks, each a goroutine.
func serveRanks(ranks int, make func(group.Group) subject) (subject, func(), error) {
	groups, err := group.New(ranks)
	if err != nil {
		return nil, nil, err
	}
	t := newTogether(ranks)
	for rank, g := range groups {
		go t.obey(rank, make(g))
	}
	return t, t.end, nil
}

// serveMPI makes this process one rank of a job that mpirun started. It works where
// the program was built with the tag mpi.
func serveMPI(ctx context.Context) (subject, func(), error) {
	job, err := mpi.World()
	if err != nil {
		return nil, nil, err
	}
	return &rankSubject{number: job.Rank(), engine: groupEngine{ctx, job}}, func() { job.Close() }, nil
}

// loopback is the name of the network interface to the machine itself.
func loopback() string {
	interfaces, _ := net.Interfaces()
	for _, i := range interfaces {
		if i.Flags&net.FlagLoopback != 0 {
			return i.Name
		}
	}
	return "lo"
}
