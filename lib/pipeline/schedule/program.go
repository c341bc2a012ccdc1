package schedule

import "fmt"

// OpKind is what a rank does in one operation of its program.
type OpKind byte

const (
	Recv    OpKind = iota // starts to receive what Peer's action made
	Compute               // does an action, when its input has come
	Send                  // starts to send what the action made to Peer
)

// Op is one operation of a rank's program. Of a message, Action is the one that made it: 2F0 stands for the activations
// that stage 2 hands to stage 3, 3B1 (or 3I1) for the gradient that stage 3 hands to stage 2.
type Op struct {
	Kind   OpKind
	Action Action
	Peer   int // the other rank of a message
}

// String is the operation in words: "recv 0F1 from 0", "1F1", "send 1B1 to 0".
func (o Op) String() string {
	switch o.Kind {
	case Recv:
		return fmt.Sprintf("recv %v from %d", o.Action, o.Peer)
	case Send:
		return fmt.Sprintf("send %v to %d", o.Action, o.Peer)
	}
	return o.Action.String()
}

// Programs lowers the schedule: each rank's actions, with the messages between ranks. It is for ranks that
//
//   - start sends and receives in the background, so that these never hold up the rank itself;
//   - need no buffers for messages: one moves when both sides have started it;
//   - have one lane to each other rank, whose messages arrive in the order in which they were sent.
//
// A send follows the action that made the message. A receive is started one action before the one that needs the message,
// so that the transfer goes on beside that; with it start the receives of all messages that come before it in its lane, be
// they needed later. Between stages of one rank there is no message.
//
// The update of a stage that several ranks have ([Schedule.Holders]) is a [Compute] like any other: these ranks first add
// up their gradients there, each waiting for all. Errors are those of passes that are missing, twice or in the wrong
// order; whether the programs come to an end is for [Schedule.Check] to say.
func (s Schedule) Programs() ([][]Op, error) {
	x, err := s.index()
	if err != nil {
		return nil, err
	}
	return s.programs(x), nil
}

func (s Schedule) programs(x *index) [][]Op {
	// lanes[from][to] has the actions whose output the lane carries, in its order; slot says at which index of its lane the
	// output of each action is.
	type ends struct{ from, to int32 }
	lanes := map[ends][]Action{}
	slots := make([][]int32, len(s.Ranks))
	for r, list := range s.Ranks {
		slots[r] = make([]int32, len(list))
		for i, a := range list {
			if to, ok := x.output(s, a); ok && to.rank != int32(r) {
				lane := ends{int32(r), to.rank}
				slots[r][i] = int32(len(lanes[lane]))
				lanes[lane] = append(lanes[lane], a)
			}
		}
	}
	programs := make([][]Op, len(s.Ranks))
	for r, list := range s.Ranks {
		begun := map[int32]int32{} // of each lane, how many receives have been started
		receive := func(i int) {
			if i == len(list) {
				return
			}
			from, ok := x.input(s, list[i])
			if !ok || from.rank == int32(r) {
				return
			}
			for last := slots[from.rank][from.at]; begun[from.rank] <= last; begun[from.rank]++ {
				made := lanes[ends{from.rank, int32(r)}][begun[from.rank]]
				programs[r] = append(programs[r], Op{Recv, made, int(from.rank)})
			}
		}
		receive(0)
		for i, a := range list {
			receive(i + 1)
			programs[r] = append(programs[r], Op{Kind: Compute, Action: a})
			if to, ok := x.output(s, a); ok && to.rank != int32(r) {
				programs[r] = append(programs[r], Op{Send, a, int(to.rank)})
			}
		}
	}
	return programs
}
