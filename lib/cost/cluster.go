package cost

import "fmt"

// Link is what a message between two devices takes: Latency once (often called α), and its bytes at Bandwidth (1/β).
type Link struct {
	Latency   Seconds
	Bandwidth float64 // bytes a second in each direction
}

// Cluster is nodes of equal devices.
type Cluster struct {
	Hardware
	DevicesPerNode int
	Intra, Inter   Link // of a device to others of its node, and of other nodes
}

// Between returns the link that the slowest message of a ring of devices takes: ranks of them, from the first of a
// node, each stride after the last. It is Inter if they are not all of one node. Neighbours have stride 1; in a mesh
// whose innermost axis is t devices, the next axis has stride t. (Where ranks·stride does not divide DevicesPerNode,
// other such groups may cross nodes though this one does not.) It returns an error for numbers below 1, and for a link
// that is not valid.
func (c Cluster) Between(ranks, stride int) (Link, error) {
	if ranks < 1 || stride < 1 || c.DevicesPerNode < 1 {
		return Link{}, fmt.Errorf("cost: %d ranks of stride %d with %d devices a node: give at least 1 of each", ranks,
			stride, c.DevicesPerNode)
	}
	link := c.Intra
	// which is (ranks-1)·stride ≥ DevicesPerNode, without overflow
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

// Op is an operation between devices.
type Op string

const (
	AllReduce     Op = "all-reduce"     // of a buffer on each rank
	AllGather     Op = "all-gather"     // into a buffer on each rank
	ReduceScatter Op = "reduce-scatter" // of a buffer on each rank
	AllToAll      Op = "all-to-all"     // of a buffer on each rank
	PointToPoint  Op = "point-to-point" // of a buffer on one rank, to another, whatever the number of ranks
)

// BusFactor returns the share of the buffer that crosses each link when the operation goes by ring, which is the factor
// between the two bandwidths of nccl-tests, doc/PERFORMANCE.md: busbw = bytes/time · BusFactor. It is 2(n−1)/n for
// all-reduce, (n−1)/n for all-gather, reduce-scatter and all-to-all, and 1 for point-to-point.
// It returns an error for an unknown operation and for fewer than 1 rank.
func (o Op) BusFactor(ranks int) (float64, error) {
	_, factor, err := o.ring(ranks)
	return factor, err
}

// ring returns how many rounds of messages the operation has by ring, and the share of the buffer in all together.
func (o Op) ring(ranks int) (rounds, share float64, err error) {
	if ranks < 1 {
		return 0, 0, fmt.Errorf("cost: %s among %d ranks: give at least 1", o, ranks)
	}
	n := float64(ranks)
	switch o {
	case AllReduce: // a reduce-scatter and an all-gather
		return 2 * (n - 1), 2 * (n - 1) / n, nil
	case AllGather, ReduceScatter, AllToAll: // n−1 messages of an n-th
		return n - 1, (n - 1) / n, nil
	case PointToPoint:
		return 1, 1, nil
	}
	return 0, 0, fmt.Errorf("cost: there is no operation %q: choose one of %q", o,
		[]Op{AllReduce, AllGather, ReduceScatter, AllToAll, PointToPoint})
}

// Time returns what an operation on a buffer of so many bytes takes among ranks with such a link to the next, by ring
// (by direct messages one after another for all-to-all), in the α-β model: each round takes the latency, and its bytes
// by the bandwidth. The buffer is the whole one: what a rank has before a reduce-scatter, and after an all-gather. It
// returns an error for a link that is not valid, an unknown operation, fewer than 1 rank and bytes below 0.
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
