package plan

import (
	"fmt"
	"time"
)

// Link is the time of a message between two ranks: Latency (often called α), plus its
// bytes over Bandwidth, in bytes per second (1/β).
type Link struct {
	Latency   time.Duration
	Bandwidth float64
}

// Topology is a network between ranks.
type Topology struct {
	// Link returns the link between two ranks. It is called for every message.
	Link func(from, to int) Link
	// Ports is the number of messages that a rank can send at the same time, and receive
	// at the same time. 0 means 1. A bidirectional ring is faster with 2.
	Ports int
}

// Uniform is a network with the same link between any two ranks.
func Uniform(link Link) Topology {
	return Topology{Link: func(int, int) Link { return link }}
}

// Groups is a network of hosts with size ranks each, in the order of the ranks: one link
// inside a host, another between hosts. A size below 1 is an error of [Plan.Cost].
func Groups(size int, inside, between Link) Topology {
	return Topology{Link: func(from, to int) Link {
		switch {
		case size < 1:
			return Link{}
		case from/size == to/size:
			return inside
		}
		return between
	}}
}

// seconds is the time of a message.
func (t Topology) seconds(m message) (float64, error) {
	link := t.Link(m.from, m.to)
	if link.Latency < 0 || !(link.Bandwidth > 0) {
		return 0, fmt.Errorf("plan: the link from rank %d to %d has latency %v and %v bytes/s: want at least 0, and "+
			"above 0", m.from, m.to, link.Latency, link.Bandwidth)
	}
	return link.Latency.Seconds() + float64(m.bytes)/link.Bandwidth, nil
}

func (t Topology) check() error {
	switch {
	case t.Link == nil:
		return fmt.Errorf("plan: a topology without links: use Uniform, Groups, or set Link")
	case t.Ports < 0:
		return fmt.Errorf("plan: %d ports: want at least 1, or 0 for 1", t.Ports)
	}
	return nil
}
