package schedule

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestPrograms: without its messages a program is the rank's list; messages are sent and received once, in the same order on
// both sides of each pair of ranks; a receive is started one action before its message is needed, or because of a later
// message of its lane.
func TestPrograms(t *testing.T) {
	sizes(Kinds(), 4, 9, 3, func(kind Kind, d, m, v int, s Schedule, have bool) {
		if !have {
			return
		}
		programs, err := s.Programs()
		if err != nil {
			t.Fatal(err)
		}
		lanes := map[OpKind]map[[2]int][]Action{Recv: {}, Send: {}}
		for r, program := range programs {
			var list []Action
			for i, op := range program {
				switch op.Kind {
				case Compute:
					list = append(list, op.Action)
				case Send:
					lanes[Send][[2]int{r, op.Peer}] = append(lanes[Send][[2]int{r, op.Peer}], op.Action)
					if program[i-1].Action != op.Action {
						t.Fatalf("%s: rank %d, operation %d, %v is not behind its action\n%v", kind, r, i, op, s)
					}
				case Recv:
					lanes[Recv][[2]int{op.Peer, r}] = append(lanes[Recv][[2]int{op.Peer, r}], op.Action)
				}
			}
			if !slices.Equal(list, s.Ranks[r]) {
				t.Fatalf("%s: rank %d computes %v\n%v", kind, r, list, s)
			}
			timely(t, s, r, program)
		}
		messages := 0
		for ends, sent := range lanes[Send] {
			messages += len(sent)
			if got := lanes[Recv][ends]; !slices.Equal(sent, got) {
				t.Fatalf("%s: from %d to %d go %v, received are %v", kind, ends[0], ends[1], sent, got)
			}
		}
		if len(lanes[Send]) != len(lanes[Recv]) {
			t.Fatalf("%s: %d lanes to send, %d to receive", kind, len(lanes[Send]), len(lanes[Recv]))
		}
		// Each boundary of stages that is one of ranks has an activation and a gradient for each micro-batch.
		boundaries := s.Stages - 1
		if kind == KindZBV {
			boundaries-- // at the V's turn both stages are on the last rank
		}
		if want := 2 * m * boundaries; messages != want && d > 1 {
			t.Errorf("%s, %d ranks, %d micro-batches, %d chunks: %d messages, want %d", kind, d, m, v, messages, want)
		}
	})
}

// timely tests when a rank starts its receives.
func timely(t *testing.T, s Schedule, r int, program []Op) {
	t.Helper()
	actions := 0 // before the operation
	for i, op := range program {
		if op.Kind == Compute {
			actions++
		}
		if op.Kind != Recv {
			continue
		}
		need := slices.IndexFunc(s.Ranks[r], func(a Action) bool { return needs(a, op.Action) })
		next := i + 1 // the receives that are started at the same time
		for next < len(program) && program[next].Kind == Recv {
			next++
		}
		forced := slices.ContainsFunc(program[i:next], func(later Op) bool {
			return later.Peer == op.Peer && needs(s.Ranks[r][min(actions+1, len(s.Ranks[r])-1)], later.Action)
		})
		first := actions == 0 && need == 0
		if need < actions || (!first && need != actions+1 && !forced) {
			t.Fatalf("%s: rank %d, operation %d, %v, is started at action %d and needed by %d\n%v", s.Name, r, i, op, actions, need, program)
		}
	}
}

// dumbPlay runs programs in a random order: one operation of a rank or one message at a time. It tells whether all end. A
// program's inputs are those that messages bring.
func dumbPlay(rng *rand.Rand, s Schedule, programs [][]Op) bool {
	type message struct {
		ends   [2]int
		action Action
	}
	sent, asked := map[[2]int][]Action{}, map[[2]int][]Action{}
	here := map[message]bool{}
	at := make([]int, len(programs))
	for {
		var can []func() // all that could be next
		for r, program := range programs {
			if at[r] == len(program) {
				continue
			}
			op := program[at[r]]
			switch {
			case op.Kind == Send:
				can = append(can, func() { sent[[2]int{r, op.Peer}] = append(sent[[2]int{r, op.Peer}], op.Action); at[r]++ })
			case op.Kind == Recv:
				can = append(can, func() { asked[[2]int{op.Peer, r}] = append(asked[[2]int{op.Peer, r}], op.Action); at[r]++ })
			case op.Action.Pass == Update:
				var ranks []int
				ready := true
				for other, list := range s.Ranks {
					if slices.ContainsFunc(list, func(a Action) bool { return a.Stage == op.Action.Stage }) {
						ranks = append(ranks, other)
						ready = ready && at[other] < len(programs[other]) && programs[other][at[other]] == op
					}
				}
				if ready {
					can = append(can, func() {
						for _, other := range ranks {
							at[other]++
						}
					})
				}
			default:
				ready := true
				for from, list := range s.Ranks {
					for _, a := range list {
						if from != r && needs(op.Action, a) && !here[message{[2]int{from, r}, a}] {
							ready = false
						}
					}
				}
				if ready {
					can = append(can, func() { at[r]++ })
				}
			}
		}
		for ends, list := range sent {
			if other := asked[ends]; len(list) > 0 && len(other) > 0 {
				can = append(can, func() {
					if list[0] == other[0] {
						here[message{ends, list[0]}] = true
					}
					sent[ends], asked[ends] = list[1:], other[1:]
				})
			}
		}
		if len(can) == 0 {
			break
		}
		can[rng.IntN(len(can))]()
	}
	for r := range programs {
		if at[r] < len(programs[r]) {
			return false
		}
	}
	for _, list := range sent {
		if len(list) > 0 {
			return false
		}
	}
	return true
}

// needs tells whether an action waits for what another makes.
func needs(a, made Action) bool {
	switch {
	case a.Microbatch != made.Microbatch:
		return false
	case a.Pass == Forward:
		return made.Pass == Forward && made.Stage == a.Stage-1
	case a.Pass == Backward || a.Pass == InputGrad:
		return (made.Pass == Backward || made.Pass == InputGrad) && made.Stage == a.Stage+1
	}
	return false
}

// TestPlay: in whatever order ranks and messages move, programs end just if Check says so.
func TestPlay(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	ended, stuck := 0, 0
	for range 1500 {
		s := some(rng, 5, 6)
		if rng.IntN(2) == 0 { // exchange two passes of a rank, which may make a cycle
			list := s.Ranks[rng.IntN(len(s.Ranks))]
			i := rng.IntN(len(list))
			j := min(i+1, len(list)-1)
			list[i], list[j] = list[j], list[i]
		}
		x, err := s.index()
		if err != nil || s.checkInputs(x) != nil || s.checkUpdates() != nil {
			continue
		}
		err = s.play(x)
		ends := dumbPlay(rng, s, s.programs(x))
		if ends != (err == nil) {
			t.Fatalf("%vends: %v, but %v", s, ends, err)
		}
		if ends {
			ended++
		} else {
			stuck++
		}
	}
	if ended < 100 || stuck < 20 {
		t.Errorf("%d schedules ended and %d did not: the test needs both", ended, stuck)
	}
}

// TestCheckLarge tries larger sizes than TestCheckKinds.
func TestCheckLarge(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 150 {
		s := some(rng, 16, 64)
		if err := s.Check(); err != nil {
			t.Errorf("%s, %d ranks, %d micro-batches: %v", s.Name, len(s.Ranks), s.Microbatches, err)
		}
	}
}

func TestPlayManyHolders(t *testing.T) {
	// Each micro-batch on a rank of its own: data parallelism, with an update between all.
	const ranks = 300
	s := Schedule{Name: "data parallel", Stages: 1, Microbatches: ranks, Every: ranks, Weights: Flush, Ranks: make([][]Action, ranks)}
	for r := range ranks {
		s.do(r, Forward, 0, r)
		s.do(r, Backward, 0, r)
	}
	s.flush()
	if err := s.Check(); err != nil {
		t.Error(err)
	}
}
