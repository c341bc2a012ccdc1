package group

import (
	"context"
	"slices"
	"unsafe"
)

// Send sends buf to rank to, which calls [Recv] with the same number of elements of the
// same type. It returns when buf may be used again.
func Send[T Element](ctx context.Context, g Group, buf []T, to int) error {
	return g.Do(ctx, SendCall(buf, to))
}

// Recv receives into buf what rank from sends.
func Recv[T Element](ctx context.Context, g Group, buf []T, from int) error {
	return g.Do(ctx, RecvCall(buf, from))
}

// Broadcast copies the root's buf to every rank's. All have the same length.
func Broadcast[T Element](ctx context.Context, g Group, buf []T, root int) error {
	return g.Do(ctx, BroadcastCall(buf, root))
}

// Reduce reduces the bufs of all ranks, element by element, into the root's. The other ranks' bufs do not change.
func Reduce[T Element](ctx context.Context, g Group, buf []T, op ReduceOp, root int) error {
	return g.Do(ctx, callOf(KindReduce, op, root, buf, buf))
}

// AllReduce reduces the bufs of all ranks, element by element, into each of them. All ranks get bitwise equal results.
func AllReduce[T Element](ctx context.Context, g Group, buf []T, op ReduceOp) error {
	return g.Do(ctx, AllReduceCall(buf, op))
}

// Gather concatenates the ins of all ranks, in the order of the ranks, into the root's
// out, which is Size times as long as in. The other ranks' outs may be nil.
func Gather[T Element](ctx context.Context, g Group, in, out []T, root int) error {
	return g.Do(ctx, callOf(KindGather, Sum, root, in, out))
}

// AllGather concatenates the ins of all ranks, in the order of the ranks, into every
// rank's out, which is Size times as long as in. A rank's in may be its own part of out.
func AllGather[T Element](ctx context.Context, g Group, in, out []T) error {
	return g.Do(ctx, callOf(KindAllGather, Sum, 0, in, out))
}

// Scatter copies part r of the root's in into rank r's out; in is Size times as long as
// out. The other ranks' ins may be nil.
func Scatter[T Element](ctx context.Context, g Group, in, out []T, root int) error {
	return g.Do(ctx, callOf(KindScatter, Sum, root, in, out))
}

// ReduceScatter reduces the ins of all ranks, element by element, and writes part r of the result into rank r's out; in
// is Size times as long as out. A rank's out may be its own part of in; the rest of in does not change.
func ReduceScatter[T Element](ctx context.Context, g Group, in, out []T, op ReduceOp) error {
	return g.Do(ctx, callOf(KindReduceScatter, op, 0, in, out))
}

// AllToAll copies part p of rank r's in to part r of rank p's out, for all r and p. All parts have the same length.
func AllToAll[T Element](ctx context.Context, g Group, in, out []T) error {
	return g.Do(ctx, callOf(KindAllToAll, Sum, 0, in, out))
}

// AllToAllV is [AllToAll] with uneven parts: in has inCounts[p] elements for each rank p, one part after the other, and
// out receives outCounts[p] from each rank p. The counts of rank r for p and of rank p from r must be equal.
func AllToAllV[T Element](ctx context.Context, g Group, in, out []T, inCounts, outCounts []int) error {
	call := callOf(KindAllToAll, Sum, 0, in, out)
	call.InCounts, call.OutCounts = some(inCounts), some(outCounts)
	return g.Do(ctx, call)
}

// Barrier returns when every rank has called it.
func Barrier(ctx context.Context, g Group) error { return g.Do(ctx, BarrierCall()) }

// Exchange is an all-gather of messages of any length: it returns every rank's message, in the order of the ranks.
func Exchange(ctx context.Context, g Group, own []byte) ([][]byte, error) {
	sizes := make([]int64, g.Size())
	if err := AllGather(ctx, g, []int64{int64(len(own))}, sizes); err != nil {
		return nil, err
	}
	padded := make([]byte, max(1, slices.Max(sizes)))
	copy(padded, own)
	all := make([]byte, len(padded)*g.Size())
	if err := AllGather(ctx, g, padded, all); err != nil {
		return nil, err
	}
	messages := make([][]byte, g.Size())
	for i := range messages {
		messages[i] = all[i*len(padded):][:sizes[i]]
	}
	return messages, nil
}

// SendCall is [Send] as a [Call], for [Group.Start].
func SendCall[T Element](buf []T, to int) Call {
	return Call{Kind: KindSend, Type: TypeOf[T](), Peer: to, In: bufferOf(buf)}
}

// RecvCall is [Recv] as a [Call].
func RecvCall[T Element](buf []T, from int) Call {
	return Call{Kind: KindRecv, Type: TypeOf[T](), Peer: from, Out: bufferOf(buf)}
}

// BroadcastCall is [Broadcast] as a [Call].
func BroadcastCall[T Element](buf []T, root int) Call {
	return callOf(KindBroadcast, Sum, root, buf, buf)
}

// AllReduceCall is [AllReduce] as a [Call].
func AllReduceCall[T Element](buf []T, op ReduceOp) Call {
	return callOf(KindAllReduce, op, 0, buf, buf)
}

// BarrierCall is [Barrier] as a [Call].
func BarrierCall() Call { return Call{Kind: KindBarrier} }

// some makes missing counts none: nil stands for even parts.
func some(counts []int) []int {
	if counts == nil {
		return []int{}
	}
	return counts
}

func callOf[T Element](kind Kind, op ReduceOp, peer int, in, out []T) Call {
	return Call{Kind: kind, Type: TypeOf[T](), Op: op, Peer: peer, In: bufferOf(in), Out: bufferOf(out)}
}

func bufferOf[T Element](s []T) Buffer {
	return Buffer{Data: unsafe.Pointer(unsafe.SliceData(s)), Len: len(s)}
}
