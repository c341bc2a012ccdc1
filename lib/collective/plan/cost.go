package plan

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Timeline is when each rank does what, and the time that a plan takes on a network.
type Timeline struct {
	Title string          // such as "all-reduce by ring, 4 ranks"
	Total time.Duration   // until the last rank is done
	Done  []time.Duration // by rank
	Spans []Span          // by round
}

// Span is a period in which a rank sends or receives one message.
type Span struct {
	Rank, Round int
	Action      Action // Send or Receive
	Peer        int    // the other rank
	Bytes       int
	Begin, End  time.Duration
}

// Cost predicts the time that a plan takes on a network, by the α-β model (Hockney 1994;
// Thakur, Rabenseifner & Gropp 2005): a message takes its link's latency plus its bytes
// over the bandwidth. elements and elementSize (in bytes) are those of [Plan.Count].
//
// A rank begins a round when its last one is done. It has a port in each direction (see Topology.Ports), so it sends
// its messages of a round one after another, and receives them one after another, as they arrive; receiving one takes
// as long as sending it, and ends no earlier. A sender does not wait for the receiver. Reducing and copying take no
// time.
//
// It returns an error for negative sizes, a plan that cannot be carried out, and a topology with an invalid link.
func (p *Plan) Cost(t Topology, elements, elementSize int) (*Timeline, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	rounds, err := p.messages(elements, elementSize)
	if err != nil {
		return nil, err
	}
	line := &Timeline{Title: fmt.Sprintf("%v by %v, %d ranks", p.Op, p.Algorithm, p.Ranks)}
	clock := make([]float64, p.Ranks) // when each rank has ended its rounds so far
	for round, messages := range rounds {
		begin := slices.Clone(clock)
		out, in := ports(begin, t.Ports), ports(begin, t.Ports)
		var flights []flight
		for _, m := range messages {
			took, err := t.seconds(m)
			if err != nil {
				return nil, err
			}
			port := out[m.from].first()
			start := *port
			*port += took
			flights = append(flights, flight{m, took, *port})
			clock[m.from] = max(clock[m.from], *port)
			line.add(m.from, round, Send, m.to, m.bytes, start, *port)
		}
		slices.SortStableFunc(flights, func(a, b flight) int { return cmp.Compare(a.sent, b.sent) })
		for _, f := range flights {
			port := in[f.to].first()
			*port = max(*port+f.took, f.sent)
			clock[f.to] = max(clock[f.to], *port)
			line.add(f.to, round, Receive, f.from, f.bytes, *port-f.took, *port)
		}
	}
	for _, seconds := range clock {
		line.Done = append(line.Done, duration(seconds))
	}
	line.Total = slices.Max(line.Done)
	return line, nil
}

// flight is a message: how long it takes in seconds, and when it is sent.
type flight struct {
	message
	took, sent float64
}

// portTimes has when each port of a rank is free.
type portTimes []float64

// first is the port that is free first.
func (p portTimes) first() *float64 {
	return &p[slices.Index(p, slices.Min(p))]
}

func ports(begin []float64, count int) []portTimes {
	all := make([]portTimes, len(begin))
	for rank, free := range begin {
		all[rank] = slices.Repeat(portTimes{free}, max(1, count))
	}
	return all
}

func (l *Timeline) add(rank, round int, action Action, peer, bytes int, begin, end float64) {
	l.Spans = append(l.Spans, Span{rank, round, action, peer, bytes, duration(begin), duration(end)})
}

func duration(seconds float64) time.Duration {
	return time.Duration(seconds*float64(time.Second) + 0.5)
}

// Fastest returns the plan of an operation that takes the least time on a network, by the model of [Plan.Cost], and
// that time. elements and elementSize are those of [Plan.Count], the options those of [New]. Of equally fast plans it
// returns the first in the order of [Algorithms].
func Fastest(op Op, ranks int, t Topology, elements, elementSize int, options ...Option) (*Plan, *Timeline, error) {
	var best *Plan
	var least *Timeline
	for _, algorithm := range Algorithms(op) {
		p, err := New(op, algorithm, ranks, options...)
		if err != nil {
			return nil, nil, err
		}
		line, err := p.Cost(t, elements, elementSize)
		if err != nil {
			return nil, nil, err
		}
		if best == nil || line.Total < least.Total {
			best, least = p, line
		}
	}
	if best == nil { // an operation that does not exist: New has the words for it
		_, err := New(op, Naive, ranks, options...)
		return nil, nil, err
	}
	return best, least, nil
}
