package group

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// hooked is an option that calls f at every step of every call.
func hooked(f func(rank int, s step)) Option { return func(c *config) { c.hook = f } }

// faultOps are all operations, with enough data for several blocks of work; each needs all of three ranks.
var faultOps = []struct {
	name  string
	calls func(rank int) []Call // made at once, and waited for
}{
	{"send and receive", func(rank int) []Call {
		return []Call{SendCall(big(), (rank+1)%3), RecvCall(big(), (rank+2)%3)}
	}},
	{"broadcast", func(int) []Call { return []Call{BroadcastCall(big(), 1)} }},
	{"reduce", func(int) []Call { return []Call{reduceCall(big(), Sum, 1)} }},
	{"all-reduce", func(int) []Call { return []Call{AllReduceCall(big(), Max)} }},
	{"gather", func(int) []Call { return []Call{callOf(KindGather, Sum, 1, big(), big3())} }},
	{"all-gather", func(int) []Call { return []Call{callOf(KindAllGather, Sum, 0, big(), big3())} }},
	{"scatter", func(int) []Call { return []Call{callOf(KindScatter, Sum, 1, big3(), big())} }},
	{"reduce-scatter", func(int) []Call { return []Call{callOf(KindReduceScatter, Mean, 0, big3(), big())} }},
	{"all-to-all", func(int) []Call { return []Call{callOf(KindAllToAll, Sum, 0, big3(), big3())} }},
	{"all-to-all-v", func(int) []Call {
		counts := []int{len(big()), len(big()), len(big())}
		return []Call{allToAllVCall(big3(), big3(), counts, counts)}
	}},
	{"barrier", func(int) []Call { return []Call{BarrierCall()} }},
	{"split", func(rank int) []Call { return []Call{{Kind: KindSplit, split: &part{color: 0, key: rank}}} }},
}

func big() []float32  { return make([]float32, 2*blockBytes/4) }
func big3() []float32 { return make([]float32, 3*2*blockBytes/4) }

// makeCalls makes the calls of an operation, all started or the last one done.
func makeCalls(ctx context.Context, g Group, calls []Call, started bool) error {
	var pending []*Pending
	for i, call := range calls {
		if !started && i == len(calls)-1 {
			if err := g.Do(ctx, call); err != nil {
				WaitAll(pending...)
				return err
			}
			continue
		}
		pending = append(pending, g.Start(ctx, call))
	}
	return WaitAll(pending...)
}

type fault string

const (
	drop      fault = "drop"       // the rank stops for ever
	pause     fault = "pause"      // it is slow, but in time
	overdue   fault = "overdue"    // it comes when the others have given up
	end       fault = "end"        // its goroutine ends
	panicking fault = "panic"      //
	panics    fault = "panics"     // before it makes the call
	fails     fault = "fail"       // its function returns an error, and the call is not made
	returns   fault = "return"     // its function returns, and the call is not made
	returned  fault = "returned"   // its function has returned before the others make the call
	otherOp   fault = "other op"   // it makes another call
	otherSize fault = "other size" // it makes the call with other lengths
	otherType fault = "other type" //
	badCall   fault = "bad call"   // it makes a call that cannot be
)

// TestFaults injects a fault into the second of three operations, at each step of each operation, and checks that every
// other rank returns in time with an error that names the rank and the operation, or does well where the fault does no
// harm. The clock is synctest's, which moves only when all ranks wait: none but the victim is late, and a hang is a
// deadlock.
func TestFaults(t *testing.T) {
	play := func(c faultCase) {
		synctest.Test(t, func(t *testing.T) {
			if err := c.play(); err != nil {
				t.Errorf("%s, started %v, step %d, %s: %v", c.op, c.started, c.at, c.fault, err)
			}
		})
	}
	for _, op := range faultOps {
		for _, started := range []bool{false, true} {
			c := faultCase{op: op.name, calls: op.calls, started: started}
			for c.at = range steps {
				for _, c.fault = range []fault{drop, pause, overdue, end, panicking} {
					if c.fault == drop && c.at == stepWorking {
						continue // memory work does not stop by itself
					}
					if c.fault == panicking && (started || op.name == "send and receive") {
						continue // a panic outside the rank's goroutine ends any Go program
					}
					play(c)
				}
			}
			c.at = steps
			for _, c.fault = range []fault{fails, panics, returns, returned, otherOp, otherSize, otherType, badCall} {
				play(c)
			}
		}
	}
}

type faultCase struct {
	op      string
	calls   func(rank int) []Call
	started bool
	at      step // steps: before or instead of the call
	fault   fault
}

const victim = 2

// patience is how long calls wait where a fault makes a rank late.
const patience = time.Second

func (c faultCase) play() error {
	var struck atomic.Bool
	var armed [3]atomic.Bool
	var strickenRank atomic.Int32
	strickenRank.Store(victim)
	over, stricken := make(chan struct{}), make(chan struct{})
	hook := func(rank int, s step) {
		// Which rank works is chance: there the first that does is the victim.
		if s != c.at || !armed[rank].Load() || rank != victim && s != stepWorking ||
			!struck.CompareAndSwap(false, true) {
			return
		}
		strickenRank.Store(int32(rank))
		close(stricken)
		switch c.fault {
		case drop:
			<-over
		case pause:
			time.Sleep(5 * time.Millisecond)
		case overdue:
			time.Sleep(3 * patience)
		case end:
			runtime.Goexit()
		case panicking:
			panic("boom")
		}
	}
	var results [3][3]error
	var survivors sync.WaitGroup
	survivors.Add(2)
	go func() { survivors.Wait(); close(over) }()
	err := Run(context.Background(), 3, func(ctx context.Context, g Group) error {
		rank := g.Rank()
		if rank != victim {
			defer survivors.Done()
		}
		if results[rank][0] = makeCalls(ctx, g, c.calls(rank), c.started); results[rank][0] != nil {
			return results[rank][0]
		}
		if err := Barrier(ctx, g); err != nil {
			return err
		}
		armed[rank].Store(true)
		mine := c.calls(rank)
		if rank == victim {
			switch c.fault {
			case fails:
				return errors.New("out of luck")
			case panics:
				panic("boom")
			case returns, returned:
				return nil
			}
			for i := range mine {
				mine[i] = spoil(mine[i], c.fault)
			}
		} else if c.fault == returned {
			time.Sleep(time.Millisecond)
		} else if c.at == stepArrived {
			<-stricken // else the victim may be the last, which has no such step
		}
		for i, calls := range [][]Call{mine, c.calls(rank)} {
			wait := time.Minute
			if c.late() {
				wait = patience
			}
			if c.late() && rank == victim {
				wait *= 4 // or it may give up first, and blame who did not come to its own call
			}
			ctx, cancel := context.WithTimeout(ctx, wait)
			results[rank][1+i] = makeCalls(ctx, g, calls, c.started)
			cancel()
		}
		return nil
	}, hooked(hook))
	if want := map[fault]string{panics: "rank 2: panic: boom\n", fails: "rank 2: out of luck"}[c.fault]; want != "" &&
		!strings.Contains(fmt.Sprint(err), want) {
		return fmt.Errorf("Run returns %v, want %q", err, want)
	}
	harmed := 0
	for rank := range 3 {
		if err := results[rank][0]; err != nil {
			return fmt.Errorf("rank %d, before the fault: %w", rank, err)
		}
		if rank == int(strickenRank.Load()) && c.fault != pause {
			continue // it has ended, or came when all was over
		}
		if results[rank][1] != nil {
			harmed++
		}
		if err := c.check(int(strickenRank.Load()), results[rank][1], results[rank][2]); err != nil {
			return fmt.Errorf("rank %d: %w", rank, err)
		}
	}
	if c.at == stepWorking && (c.fault == end || c.fault == panicking) && harmed == 0 {
		return errors.New("a rank died over the data, and the others think it is whole")
	}
	return nil
}

// reasons are what errors say of what the victim did.
var reasons = map[fault]string{end: "died", panicking: "died", panics: "panicked: boom",
	fails: "returned an error: out of luck", returns: "has returned", returned: "has returned",
	badCall: "made an invalid call"}

// late is whether others find out because their time is up.
func (c faultCase) late() bool {
	return c.fault == drop || c.fault == overdue || c.fault == otherOp && c.op == "send and receive"
}

// check looks at what another rank than the victim got from the call with the fault, and from the next.
func (c faultCase) check(victim int, first, next error) error {
	if c.fault == pause {
		return errors.Join(first, next)
	}
	if next == nil {
		if c.fault == overdue && c.at != stepCalled {
			return nil // the others waited just long enough
		}
		return fmt.Errorf("no error after the fault; the call with the fault: %v", first)
	}
	if first == nil && (c.at == stepCalled || c.at == steps) && c.op != "send and receive" {
		return errors.New("no error from the call with the fault")
	}
	for _, err := range []error{first, next} {
		if err == nil {
			continue // the victim's part was done, or no part of this rank's
		}
		var failure *Failure
		if !errors.As(err, &failure) {
			return fmt.Errorf("%v is no *Failure", err)
		}
		if failure.Rank != victim && !c.blameless(failure) {
			return fmt.Errorf("blames another: %v", err)
		}
		if failure.Seq == 0 || !strings.Contains(err.Error(), fmt.Sprintf("%v #%d: rank %d ", failure.Kind, failure.Seq,
			failure.Rank)) {
			return fmt.Errorf("%q does not name the operation, its number and the rank", err)
		}
		if c.late() && !errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("%v is no context.DeadlineExceeded", err)
		}
		if !strings.Contains(err.Error(), reasons[c.fault]) {
			return fmt.Errorf("%q does not say why", err)
		}
	}
	if first != nil && first != next {
		return fmt.Errorf("first %q, then %q", first, next)
	}
	return nil
}

// blameless are the faults in which another rank may be named: a receive that does
// not fit its send is the receiver's, whichever of the two changed; and memory work has
// no deadline, so that in a ring of messages the rank that waits for its end is late.
func (c faultCase) blameless(failure *Failure) bool {
	pair := failure.Kind == KindSend || failure.Kind == KindRecv
	return pair && (c.fault == otherSize || c.fault == otherType || c.fault == overdue && c.at == stepWorking)
}

// spoil makes another call of a call.
func spoil(call Call, f fault) Call {
	switch f {
	case otherOp:
		if call.Kind == KindAllReduce {
			return BarrierCall()
		}
		return AllReduceCall(big(), Max)
	case otherSize:
		if call.Kind == KindBarrier || call.Kind == KindSplit {
			return AllReduceCall([]int32{1}, Sum)
		}
		call.In.Len, call.Out.Len = call.In.Len/2, call.Out.Len/2
		if call.InCounts != nil {
			half := []int{call.In.Len / 3, call.In.Len / 3, call.In.Len / 3}
			call.InCounts, call.OutCounts = half, half
		}
	case otherType:
		if call.Kind == KindBarrier || call.Kind == KindSplit {
			return AllReduceCall([]float64{1}, Sum)
		}
		call.Type = Int32
		if call.Op == Mean {
			call.Op = Sum
		}
	case badCall:
		return BroadcastCall(big(), 3)
	}
	return call
}
