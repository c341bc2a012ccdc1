package cost

import "fmt"

// Link is a connection between two devices in the α-β model: a message takes Latency (α) plus its bytes divided by
// Bandwidth (1/β).
type Link struct {
	Latency   Seconds
	Bandwidth float64 // bytes a second in each direction
}

// Cluster is a number of nodes with equal devices.
type Cluster struct {
	Hardware
	DevicesPerNode int
	Intra, Inter   Link // from a device to others of its node, and to other nodes
}

// Between returns the slowest link of a ring of devices: Intra if all are on one node, else Inter. The ring starts with
// the first device of a node and takes every stride-th. Neighbours have stride 1; in a mesh whose innermost axis has t
// devices, the next axis has stride t. If ranks·stride does not divide DevicesPerNode, other rings of this mesh may
// cross nodes though this one does not. It returns an error for numbers below 1 and for an invalid link.
func (c Cluster) Between(ranks, stride int) (Link, error) {
	if ranks < 1 || stride < 1 || c.DevicesPerNode < 1 {
		return Link{}, fmt.Errorf("cost: ranks is %d, stride %d and DevicesPerNode %d: give at least 1 for each", ranks,
			stride, c.DevicesPerNode)
	}
	link := c.Intra
	// (ranks-1)·stride ≥ DevicesPerNode without overflow
	if ranks > 1 && stride > (c.DevicesPerNode-1)/(ranks-1) {
		link = c.Inter
	}
	return link, link.Validate()
}

// Validate returns an error unless the latency is at least 0, the bandwidth positive, and both finite.
func (l Link) Validate() error {
	if err := positive(quantity{"Link.Bandwidth", l.Bandwidth}); err != nil {
		return err
	}
	return notNegative(quantity{"Link.Latency", float64(l.Latency)})
}

// Op is a communication operation.
type Op string

// The operations, and the buffer whose size [Link.Time] takes.
const (
	AllReduce     Op = "all-reduce"     // the buffer of each rank
	AllGather     Op = "all-gather"     // the gathered buffer
	ReduceScatter Op = "reduce-scatter" // the buffer of each rank before it is scattered
	AllToAll      Op = "all-to-all"     // the buffer of each rank
	PointToPoint  Op = "point-to-point" // the buffer that one rank sends to another; ranks do not count
)

// BusFactor returns the part of the buffer that crosses each link of a ring: 2(n−1)/n for all-reduce, (n−1)/n for
// all-gather, reduce-scatter and all-to-all, and 1 for point-to-point. It is the factor between the two bandwidths of
// nccl-tests (doc/PERFORMANCE.md): busbw = algbw · BusFactor. It returns an error for an unknown operation and for
// fewer than 1 rank.
func (o Op) BusFactor(ranks int) (float64, error) {
	_, factor, err := o.ring(ranks)
	return factor, err
}

// ring returns the number of rounds of the ring algorithm, and the part of the buffer that a rank sends in all of them.
func (o Op) ring(ranks int) (rounds, share float64, err error) {
	if ranks < 1 {
		return 0, 0, fmt.Errorf("cost: %s with %d ranks: give at least 1", o, ranks)
	}
	n := float64(ranks)
	switch o {
	case AllReduce: // a reduce-scatter and an all-gather
		return 2 * (n - 1), 2 * (n - 1) / n, nil
	case AllGather, ReduceScatter, AllToAll: // n−1 messages of 1/n of the buffer
		return n - 1, (n - 1) / n, nil
	case PointToPoint:
		return 1, 1, nil
	}
	return 0, 0, fmt.Errorf("cost: unknown operation %q: choose one of %q", o,
		[]Op{AllReduce, AllGather, ReduceScatter, AllToAll, PointToPoint})
}

// Time returns the time of an operation with the ring algorithm over this link, in the α-β model. An all-to-all sends
// its messages one after another. bytes is the size of the buffer that the constants of [Op] name. It returns an error
// for an invalid link, an unknown operation, fewer than 1 rank and negative bytes.
func (l Link) Time(o Op, bytes float64, ranks int) (Seconds, error) {
	if err := l.Validate(); err != nil {
		return 0, err
	}
	if err := notNegative(quantity{"bytes", bytes}); err != nil {
		return 0, err
	}
	rounds, share, err := o.ring(ranks)
	return Seconds(rounds)*l.Latency + Seconds(share*bytes/l.Bandwidth), err
}
