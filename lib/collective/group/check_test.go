package group

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unsafe"
)

func TestCheck(t *testing.T) {
	a, b := make([]float32, 12), make([]float32, 4)
	for _, test := range []struct {
		name string
		call Call
		want string // in the error of rank 1 of 3; "" for none
	}{
		{"send", SendCall(a, 2), ""},
		{"to itself", SendCall(a, 1), "rank 1 cannot send to or from itself"},
		{"to nobody", SendCall(a, 3), "the peer is rank 3, and the group has ranks 0 to 2"},
		{"from nobody", RecvCall(a, -1), "the peer is rank -1"},
		{"root", BroadcastCall(a, 3), "the root is rank 3"},
		{"mean of floats", AllReduceCall(a, Mean), ""},
		{"mean of integers", AllReduceCall([]int32{1}, Mean), "the mean of int32 is not a whole number"},
		{"mean of bytes", reduceCall([]uint8{1}, Mean, 0), "the mean of uint8"},
		{"no such op", AllReduceCall(a, 7), "there is no op(7)"},
		{"no such type", Call{Kind: KindAllReduce, Type: 9}, "there is no type(9)"},
		{"no such kind", Call{Kind: 77}, "there is no kind(77)"},
		{"split", Call{Kind: KindSplit}, "call the group's Split"},
		{"no memory", Call{Kind: KindBroadcast, In: Buffer{nil, 3}, Out: Buffer{nil, 3}}, "a buffer of 3 elements at"},
		{"less than nothing", Call{Kind: KindSend, In: Buffer{unsafe.Pointer(&a[0]), -3}}, "a buffer of -3 elements"},
		{"not in place", Call{Kind: KindAllReduce, In: bufferOf(a), Out: bufferOf(b)}, "all-reduce works in place"},
		{"gather", gatherCall(b, nil, 0), ""},
		{"gather at the root", gatherCall(b, a, 1), ""},
		{"gather into nothing", gatherCall(b, nil, 1), "in has 4 elements and out 0; want 3 times as many"},
		{"gather in place", gatherCall(a[4:8], a, 1), ""},
		{"all-gather", allGatherCall(b, a), ""},
		{"all-gather in place", allGatherCall(a[4:8], a), ""},
		{"all-gather over another part", allGatherCall(a[0:4], a), "in shares memory with out, and is not part 1 of it"},
		{"all-gather of the wrong size", allGatherCall(a, b), "in has 12 elements and out 4"},
		{"scatter of the wrong size", scatterCall(b, b, 1), "out has 4 elements and in 4; want 3 times as many"},
		{"scatter elsewhere", scatterCall(nil, b, 0), ""},
		{"reduce-scatter", reduceScatterCall(a, b, Sum), ""},
		{"reduce-scatter in place", reduceScatterCall(a, a[4:8], Sum), ""},
		{"reduce-scatter over another part", reduceScatterCall(a, a[5:9], Sum), "out shares memory with in"},
		{"all-to-all in place", allToAllCall(a, a), "does not work in place"},
		{"all-to-all of two lengths", allToAllCall(a, b), "in has 12 elements and out 4"},
		{"all-to-all of a remainder", allToAllCall(b, b[:4:4]), "want one length that 3 ranks divide"},
		{"all-to-all-v", allToAllVCall(a, b, []int{0, 12, 0}, []int{1, 1, 2}), ""},
		{"all-to-all-v without counts", allToAllVCall(a, b, nil, nil), "0 in-counts for 3 ranks"},
		{"all-to-all-v of few counts", allToAllVCall(a, b, []int{12}, []int{4}), "1 in-counts for 3 ranks"},
		{"all-to-all-v below zero", allToAllVCall(a, b, []int{-1, 1, 12}, []int{1, 1, 2}), "the in-count of rank 0 is -1"},
		{"all-to-all-v of too little", allToAllVCall(a, b, []int{1, 1, 1}, []int{1, 1, 2}),
			"the in-counts add up to 3, and in has 12"},
		{"barrier", BarrierCall(), ""},
		{"nothing", AllReduceCall([]float32(nil), Sum), ""},
	} {
		err := test.call.Check(1, 3)
		if test.want == "" && err != nil ||
			test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: error %v, want %q", test.name, err, test.want)
		}
	}
}

// TestDisagreement has one rank of three ask for something else in each way, and looks at the words.
func TestDisagreement(t *testing.T) {
	shared := make([]float32, 6)
	four := func() []float32 { return make([]float32, 4) }
	for _, test := range []struct {
		name   string
		others Call
		odd    Call // of rank 2
		want   string
	}{
		{"kind", BarrierCall(), AllReduceCall(four(), Sum),
			"barrier #1: rank 2 called all-reduce (sum of 4 float32) where rank 0 called barrier"},
		{"op", AllReduceCall(four(), Sum), AllReduceCall(four(), Max),
			"rank 2 called all-reduce (max of 4 float32) where rank 0 called all-reduce (sum of 4 float32)"},
		{"root", reduceCall(four(), Sum, 0), reduceCall(four(), Sum, 2), "rank 2 called reduce (sum of 4 float32 to rank 2)"},
		{"length", AllReduceCall(four(), Sum), AllReduceCall(four()[:3], Sum), "rank 2 called all-reduce (sum of 3 float32)"},
		{"type", AllReduceCall(four(), Sum), AllReduceCall([]int32{1, 2, 3, 4}, Sum),
			"rank 2 called all-reduce (sum of 4 int32)"},
		{"counts", allToAllVCall(shared[:3], make([]float32, 3), []int{1, 1, 1}, []int{1, 1, 1}),
			allToAllVCall(make([]float32, 4), make([]float32, 3), []int{1, 2, 1}, []int{1, 1, 1}),
			"rank 2 has 2 elements for rank 1, which expects 1"},
		{"memory", BroadcastCall(shared, 0), BroadcastCall(shared, 0), "rank 1 writes to memory that rank 0 uses"},
	} {
		err := Run(context.Background(), 3, func(ctx context.Context, g Group) error {
			call := test.others
			switch {
			case g.Rank() == 2:
				call = test.odd
			case test.name != "memory" && g.Rank() == 1: // memory of its own
				call = again(call)
			}
			err := g.Do(ctx, call)
			if later := Barrier(ctx, g); later != err {
				return fmt.Errorf("then %w", later)
			}
			return err
		})
		if err == nil || strings.Count(err.Error(), test.want) != 3 {
			t.Errorf("%s: error\n%v\nwant %q three times", test.name, err, test.want)
		}
	}
}

// again is the call with buffers of its own.
func again(call Call) Call {
	fresh := func(b Buffer) Buffer {
		if b.Len == 0 {
			return b
		}
		return bufferOf(make([]float32, b.Len))
	}
	same := call.In == call.Out
	call.In, call.Out = fresh(call.In), fresh(call.Out)
	if same {
		call.Out = call.In
	}
	return call
}

func TestBadArguments(t *testing.T) {
	nothing := func(context.Context, Group) error { return nil }
	for _, test := range []struct {
		want    string
		n       int
		options []Option
	}{
		{"0 ranks; want 1 to 1024", 0, nil},
		{"5000 ranks", 5000, nil},
		{"a timeout of 0s", 2, []Option{Timeout(0)}},
	} {
		if err := Run(context.Background(), test.n, nothing, test.options...); err == nil ||
			!strings.Contains(err.Error(), test.want) {
			t.Errorf("error %v, want %q", err, test.want)
		}
		if _, err := New(test.n, test.options...); err == nil {
			t.Errorf("New: no error, want %q", test.want)
		}
	}
}

func TestLate(t *testing.T) {
	defer noLeaks(t)()
	err := Run(context.Background(), 4, func(ctx context.Context, g Group) error {
		if err := Barrier(ctx, g); err != nil {
			return err
		}
		if g.Rank() == 3 {
			select { // it does something else, until the others give up
			case <-ctx.Done():
				return Barrier(context.Background(), g)
			case <-time.After(time.Minute):
				return errors.New("the others wait for ever")
			}
		}
		return AllReduce(ctx, g, make([]float32, 8), Sum)
	}, Timeout(50*time.Millisecond))
	if err == nil || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("error %v", err)
	}
	if n := strings.Count(err.Error(), "all-reduce #2: rank 3 did not arrive within "); n != 4 {
		t.Errorf("%d ranks of 4 say that rank 3 is late:\n%v", n, err)
	}
	if !strings.Contains(err.Error(), "(its last call was barrier #1)") {
		t.Errorf("the error does not say where rank 3 is:\n%v", err)
	}
}

func TestCancel(t *testing.T) {
	defer noLeaks(t)()
	ctx, cancel := context.WithCancelCause(context.Background())
	out := errors.New("out of patience")
	err := Run(context.Background(), 3, func(runCtx context.Context, g Group) error {
		switch g.Rank() {
		case 0:
			return Barrier(runCtx, g)
		case 1:
			time.AfterFunc(10*time.Millisecond, func() { cancel(out) })
			return Barrier(ctx, g)
		}
		<-runCtx.Done()
		return nil
	})
	if !errors.Is(err, context.Canceled) || !errors.Is(err, out) || !strings.Contains(err.Error(),
		"rank 0: barrier #1: rank 1 gave up: context canceled: out of patience") {
		t.Errorf("error %v", err)
	}
}

// Calls of the functions without Call.

func reduceCall[T Element](buf []T, op ReduceOp, root int) Call {
	return callOf(KindReduce, op, root, buf, buf)
}

func gatherCall[T Element](in, out []T, root int) Call {
	return callOf(KindGather, Sum, root, in, out)
}

func allGatherCall[T Element](in, out []T) Call { return callOf(KindAllGather, Sum, 0, in, out) }

func scatterCall[T Element](in, out []T, root int) Call {
	return callOf(KindScatter, Sum, root, in, out)
}

func reduceScatterCall[T Element](in, out []T, op ReduceOp) Call {
	return callOf(KindReduceScatter, op, 0, in, out)
}

func allToAllCall[T Element](in, out []T) Call { return callOf(KindAllToAll, Sum, 0, in, out) }

func allToAllVCall[T Element](in, out []T, inCounts, outCounts []int) Call {
	call := allToAllCall(in, out)
	call.InCounts, call.OutCounts = some(inCounts), some(outCounts)
	return call
}
