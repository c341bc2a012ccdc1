package paramserver_test

import (
	"context"
	"sync"
	"testing"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/collective/plan"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/paramserver"
	"github.com/shardbook/shardbook/lib/train"
)

// sent returns what each rank sends in a step: in a run of two, but not in one of one.
func sent(t *testing.T, e *paramserver.Programs, world, rows int) []plan.Load {
	t.Helper()
	loads := make([]plan.Load, world)
	for steps := 1; steps <= 2; steps++ {
		if err := group.Run(context.Background(), world, func(ctx context.Context, inner group.Group) error {
			g := group.Count(inner)
			rank, err := e.Join(ctx, g, g.Rank())
			if err != nil {
				return err
			}
			inputs, targets := toy.Batch(0, rows)
			for range steps {
				if _, err := rank.Step(ctx, inputs, targets); err != nil {
					return err
				}
			}
			traffic, err := rank.Traffic()
			if err != nil {
				return err
			}
			if err := rank.Close(); err != nil {
				return err
			}
			if n := traffic[paramserver.BetweenRanks]; n == 0 || n > int64(g.Total().Bytes) {
				t.Errorf("rank %d: %d bytes of traffic in a step, and %d were sent in all", g.Rank(), n,
					g.Total().Bytes)
			}
			own, total := &loads[g.Rank()], g.Total()
			own.Messages, own.Bytes = total.Messages-own.Messages, total.Bytes-own.Bytes
			return group.Barrier(ctx, inner)
		}); err != nil {
			t.Fatal(err)
		}
	}
	return loads
}

// TestStream checks that each rank sends another one message at a time, each followed by its data, and receives in the
// same way: only if one of them has a server.
func TestStream(t *testing.T) {
	const world, servers = 4, 2
	backend := devicetest.Open(t, world)
	for _, async := range []bool{false, true} {
		o := paramserver.Options{Async: async, BucketBytes: 160, Servers: servers}
		e := newEngine(t, backend, train.Recipe{Model: toy.Model(false), Optimizer: optim.SGD(0.1)}, o)
		if err := group.Run(t.Context(), world, func(ctx context.Context, g group.Group) error {
			s := &streams{Group: g, t: t, buckets: e.Buckets(), ways: map[group.Kind][]stream{
				group.KindSend: make([]stream, world), group.KindRecv: make([]stream, world)}}
			rank, err := e.Join(ctx, s, g.Rank())
			if err != nil {
				return err
			}
			if _, err := steady(ctx, g, rank, 5, toy.Batches(2*world)); err != nil {
				return err
			}
			for kind, ways := range s.ways {
				for other := range ways {
					talk := other != g.Rank() && min(other, g.Rank()) < servers
					if w := &ways[other]; w.follows != 0 || w.ended != talk {
						t.Errorf("async %v: %v of rank %d with rank %d: %+v at the end", async, kind, g.Rank(), other,
							w)
					}
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// streams is a rank's view of a group which follows what it sends to each other rank, and receives.
type streams struct {
	group.Group
	t       *testing.T
	buckets []ddp.Bucket
	ways    map[group.Kind][]stream
}

// stream is one way between two ranks.
type stream struct {
	busy    sync.Mutex // while a message or its data are on their way
	follows int        // bytes of the data that the last message has announced
	ended   bool       // by a message that says so
}

func (s *streams) Do(ctx context.Context, call group.Call) error {
	ways := s.ways[call.Kind]
	if ways == nil {
		return s.Group.Do(ctx, call)
	}
	w, data := &ways[call.Peer], call.In
	if call.Kind == group.KindRecv {
		data = call.Out
	}
	if !w.busy.TryLock() {
		s.t.Errorf("rank %d: a second %v with rank %d", s.Rank(), call.Kind, call.Peer)
		return s.Group.Do(ctx, call)
	}
	defer w.busy.Unlock()
	err := s.Group.Do(ctx, call)
	switch bytes := data.Len * call.Type.Size(); {
	case err != nil:
	case w.ended:
		s.t.Errorf("rank %d: %v with rank %d behind the last message", s.Rank(), call.Kind, call.Peer)
	case w.follows > 0:
		if bytes != w.follows {
			s.t.Errorf("rank %d: %v of %d bytes with rank %d, want the %d announced", s.Rank(), call.Kind, bytes,
				call.Peer, w.follows)
		}
		w.follows = 0
	case bytes != 24:
		s.t.Errorf("rank %d: %v of %d bytes with rank %d, want a message", s.Rank(), call.Kind, bytes, call.Peer)
	default:
		message := *(*[3]int64)(data.Data)
		if w.ended = message[0] == 2; message[0] < 2 {
			w.follows = int(s.buckets[message[1]].Bytes())
		}
	}
	return err
}

// TestServerBytes counts what servers and workers send: each bucket's gradients there and its parameters back, but for
// the server's own, and 24 bytes before each.
func TestServerBytes(t *testing.T) {
	const worlds = 5
	backend := devicetest.Open(t, worlds)
	for _, servers := range []int{1, 2, worlds} {
		for _, async := range []bool{false, true} {
			if async && servers != 2 {
				continue // how many there are, servers that wait have shown
			}
			o := paramserver.Options{Async: async, BucketBytes: 160, Servers: servers}
			e := newEngine(t, backend, train.Recipe{Model: toy.Model(false), Optimizer: optim.SGD(0.1)}, o)
			loads := sent(t, e, worlds, 2*worlds)
			for rank, load := range loads {
				want := 0
				for i, b := range e.Buckets() {
					if i%servers == rank {
						want += (worlds - 1) * (int(b.Bytes()) + 24) // the parameters, as many as gradients
					} else {
						want += int(b.Bytes()) + 24
					}
				}
				if load.Bytes != want {
					t.Errorf("async %v, %d servers: rank %d sends %d bytes, want %d", async, servers, rank, load.Bytes,
						want)
				}
			}
		}
	}
}
