package group

import (
	"context"
	"strings"
	"testing"
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
		{"gather", callOf(KindGather, Sum, 0, b, nil), ""},
		{"gather at the root", callOf(KindGather, Sum, 1, b, a), ""},
		{"gather into nothing", callOf(KindGather, Sum, 1, b, nil), "in has 4 elements and out 0; want 3 times as many"},
		{"gather in place", callOf(KindGather, Sum, 1, a[4:8], a), ""},
		{"all-gather", callOf(KindAllGather, Sum, 0, b, a), ""},
		{"all-gather in place", callOf(KindAllGather, Sum, 0, a[4:8], a), ""},
		{"all-gather over another part", callOf(KindAllGather, Sum, 0, a[0:4], a),
			"in shares memory with out, and is not part 1 of it"},
		{"all-gather of the wrong size", callOf(KindAllGather, Sum, 0, a, b), "in has 12 elements and out 4"},
		{"scatter of the wrong size", callOf(KindScatter, Sum, 1, b, b),
			"out has 4 elements and in 4; want 3 times as many"},
		{"scatter elsewhere", callOf(KindScatter, Sum, 0, nil, b), ""},
		{"reduce-scatter", callOf(KindReduceScatter, Sum, 0, a, b), ""},
		{"reduce-scatter in place", callOf(KindReduceScatter, Sum, 0, a, a[4:8]), ""},
		{"reduce-scatter over another part", callOf(KindReduceScatter, Sum, 0, a, a[5:9]), "out shares memory with in"},
		{"all-to-all in place", callOf(KindAllToAll, Sum, 0, a, a), "does not work in place"},
		{"all-to-all of two lengths", callOf(KindAllToAll, Sum, 0, a, b), "in has 12 elements and out 4"},
		{"all-to-all of a remainder", callOf(KindAllToAll, Sum, 0, b, b[:4:4]), "want one length that 3 ranks divide"},
		{"all-to-all-v", allToAllVCall(a, b, []int{0, 12, 0}, []int{1, 1, 2}), ""},
		{"all-to-all-v without counts", allToAllVCall(a, b, nil, nil), "0 in-counts for 3 ranks"},
		{"all-to-all-v of few counts", allToAllVCall(a, b, []int{12}, []int{4}), "1 in-counts for 3 ranks"},
		{"all-to-all-v below zero", allToAllVCall(a, b, []int{-1, 1, 12}, []int{1, 1, 2}), "the in-count of rank 0 is -1"},
		{"all-to-all-v of too little", allToAllVCall(a, b, []int{1, 1, 1}, []int{1, 1, 2}),
			"the in-counts add up to 3, and in has 12"},
		{"all-reduce with counts", Call{Kind: KindAllReduce, InCounts: []int{0, 0, 0}}, "all-reduce has no counts"},
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

// TestSharedMemory has ranks that write to each other's memory.
func TestSharedMemory(t *testing.T) {
	shared := make([]float32, 6)
	for want, play := range map[string]func(ctx context.Context, g Group) error{
		"rank 1 writes to memory that rank 0 uses": func(ctx context.Context, g Group) error {
			return Broadcast(ctx, g, shared, 0)
		},
		"rank 1 receives into the memory that rank 0 sends": func(ctx context.Context, g Group) error {
			if g.Rank() == 0 {
				return Send(ctx, g, shared, 1)
			}
			return Recv(ctx, g, shared, 0)
		},
	} {
		if err := Run(context.Background(), 2, play); err == nil || strings.Count(err.Error(), want) != 2 {
			t.Errorf("error\n%v\nwant %q twice", err, want)
		}
	}
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

// Calls of the functions without Call.

func reduceCall[T Element](buf []T, op ReduceOp, root int) Call {
	return callOf(KindReduce, op, root, buf, buf)
}

func allToAllVCall[T Element](in, out []T, inCounts, outCounts []int) Call {
	call := callOf(KindAllToAll, Sum, 0, in, out)
	call.InCounts, call.OutCounts = some(inCounts), some(outCounts)
	return call
}
