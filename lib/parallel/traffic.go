package parallel

import (
	"slices"

	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/pipeline/schedule"
	"github.com/shardbook/shardbook/lib/xla"
)

// traffic is what a rank has sent in a step.
type traffic struct {
	calls map[*xla.Program]int // whose collectives are known once they are compiled
	sent  map[string]int64     // bytes to other ranks
}

// The names, in [Rank.Traffic], of what goes between ranks.
const (
	BetweenStages = "pipe"   // activations and their gradients, to the stages before and behind
	BetweenRanks  = "shared" // gradients that ranks add up: of replicas, and of what stages have in common
)

// call runs a program, and counts it.
func (r *Rank) call(p *xla.Program, args ...any) ([]*dtensor.Tensor, error) {
	r.traffic.calls[p]++
	return p.Call(args...)
}

// Traffic is what the rank sent in the last step, in bytes: by mesh axes, as xla.Program.CollectivesAlong names them, the data of the
// collectives that each of its devices takes part in (of what goes in or comes out, whichever is more); and under [BetweenStages] and
// [BetweenRanks] the messages to other ranks, of all its devices together. What XLA moves for a device to know its own number, a few
// bytes, counts too.
func (r *Rank) Traffic() (map[string]int64, error) {
	if r.lost != nil {
		return nil, r.lost
	}
	all := map[string]int64{}
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

// leaves says whether an action of a rank of a pipeline makes something for a stage of another rank. The passes of a stage for a
// micro-batch are all on one rank.
func leaves(s schedule.Schedule, rank int, a schedule.Action) bool {
	to, ok := a.OutputTo(s.Stages)
	return ok && !slices.ContainsFunc(s.Ranks[rank], func(other schedule.Action) bool {
		return other.Stage == to && other.Microbatch == a.Microbatch
	})
}
