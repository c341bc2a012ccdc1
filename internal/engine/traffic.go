package engine

import "github.com/shardbook/shardbook/lib/xla"

// BetweenStages is the name, in [Rank.Traffic], of activations and their gradients that go to other ranks.
const BetweenStages = "pipe"

// traffic is what a rank has sent in a step.
type traffic struct {
	calls map[*xla.Program]int // whose collectives are known once they are compiled
	ran   map[needs]bool       // programs
	sent  map[string]int64     // bytes to other ranks, by axis
}

// needs is a program that says what it needs.
type needs interface{ Memory() (xla.Memory, error) }

// temporary is the most that a program of the last step needs on a device besides what goes in and comes out.
func (t *traffic) temporary() (most int64) {
	if t == nil {
		return 0
	}
	for p := range t.ran {
		if m, err := p.Memory(); err == nil { // else it is closed
			most = max(most, m.Temporary)
		}
	}
	return most
}

// Traffic is what the rank sent in the last step, in bytes, by axis: of operations between the rank's own devices, as
// xla.Program.CollectivesAlong names their axes, the data of those that each device takes part in (of what goes in or
// comes out, whichever is more); of operations between ranks, by the plan's axis, likewise, and where a hook reduces
// gradients of the calls that it makes; and under [BetweenStages] the messages to other ranks, of all its devices
// together.
func (r *Rank) Traffic() (map[string]int64, error) {
	if r.lost != nil {
		return nil, r.lost
	}
	all := map[string]int64{}
	if r.traffic == nil {
		return all, nil
	}
	for name, n := range r.traffic.sent {
		all[name] += n
	}
	for p, calls := range r.traffic.calls {
		along, err := p.CollectivesAlong()
		if err != nil {
			return nil, err
		}
		for axes, report := range along {
			for _, t := range report {
				all[axes] += int64(calls) * t.Bytes
			}
		}
	}
	return all, nil
}
