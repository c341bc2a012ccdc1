package plan

import (
	"fmt"
	"math"
	"time"
)

// Link is what a message between two ranks takes: Latency once (often called α), and
// its bytes at Bandwidth, in bytes a second (1/β).
type Link struct {
	Latency   time.Duration
	Bandwidth float64
}

// Topology is a network between ranks.
type Topology struct {
	// Link is what lies between two ranks. It is asked for every message.
	Link func(from, to int) Link
	// Ports is how many messages a rank can send at the same time, and as many it can
	// receive. 0 means 1. A bidirectional ring needs 2 to be of use.
	Ports int
	// Reduction is how many bytes a rank adds to others in a second (1/γ). 0 means
	// that adding takes no time.
	Reduction float64
}

// Uniform is a network with the same link between any two ranks.
func Uniform(link Link) Topology {
	return Topology{Link: func(int, int) Link { return link }}
}

// Groups is a network of hosts with size ranks each, in their order: one kind of
// link inside a host, another between hosts. A size below 1 is an error of Cost.
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

// seconds is what a message takes.
func (t Topology) seconds(m message) (float64, error) {
	link := t.Link(m.from, m.to)
	if link.Latency < 0 || !(link.Bandwidth > 0) {
		return 0, fmt.Errorf("plan: the link from rank %d to %d has latency %v and %v bytes/s: want at least 0, and above 0",
			m.from, m.to, link.Latency, link.Bandwidth)
	}
	return link.Latency.Seconds() + float64(m.bytes)/link.Bandwidth, nil
}

func (t Topology) check() error {
	switch {
	case t.Link == nil:
		return fmt.Errorf("plan: a topology without links: use Uniform, Groups, or set Link")
	case t.Ports < 0:
		return fmt.Errorf("plan: %d ports: want at least 1, or 0 for 1", t.Ports)
	case t.Reduction < 0 || math.IsNaN(t.Reduction):
		return fmt.Errorf("plan: a reduction of %v bytes/s: want it above 0, or 0 for no cost", t.Reduction)
	}
	return nil
}
