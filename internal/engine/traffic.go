package engine

import "github.com/shardbook/shardbook/lib/xla"

// BetweenStages names, in [Rank.Traffic], activations and their gradients that are sent to other ranks.
const BetweenStages = "pipe"

// traffic is what a rank has sent in a step.
type traffic struct {
	calls map[*xla.Program]int // calls; their collectives are known once they are compiled
	ran   map[needs]bool       // programs
	sent  map[string]int64     // bytes to other ranks, by axis
}

// needs is a program that knows its memory.
type needs interface{ Memory() (xla.Memory, error) }

// temporary returns the largest temporary memory, on a device, of a program in the last step.
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

// Traffic returns the bytes that the rank sent in the last step, by axis. A collective counts as its inputs or outputs
// on each device, whichever are larger: between the rank's own devices by the axes that xla.Program.CollectivesAlong
// names, between ranks by the plan's axis. If a hook reduces gradients, its calls count. Messages between stages, of
// all the rank's devices, are under [BetweenStages].
func (r *Rank) Traffic() (map[string]int64, error) {
	if r.failed != nil {
		return nil, r.failed
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
