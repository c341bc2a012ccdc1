package plan

// Volume is a line of a table that is often taught: how many bytes an operation
// moves in all, over all devices.
type Volume struct {
	Name      string
	Op        Op
	Algorithm Algorithm // whose count it is
	Formula   string    // in Φ bytes and N devices
	Factor    func(ranks int) float64
}

// Volumes is the table. It goes with [Plan.Count] if Φ is the size of the whole
// buffer, as it is there.
//
// Its source says that Φ is the data in one device. For broadcast, reduce and
// all-reduce that is the same. For the others a device holds the whole buffer only
// at one end: the root of a scatter before it, that of a gather after it, every
// device after an all-gather and before a reduce-scatter; at the other end it holds
// Φ/N. Where Φ is that part, as the counts that NCCL and MPI take are, these four
// lines are N times as large: (N-1)Φ for scatter and gather, N(N-1)Φ for the others.
//
// The table has no all-to-all; by [Naive] it is (N-1)Φ, with Φ the whole buffer.
func Volumes() []Volume {
	all := func(n int) float64 { return float64(n - 1) }
	part := func(n int) float64 { return float64(n-1) / float64(n) }
	return []Volume{
		{"broadcast", Broadcast, Naive, "(N-1)Φ", all},
		{"scatter", Scatter, Naive, "(N-1)/N Φ", part},
		{"reduce", Reduce, Naive, "(N-1)Φ", all},
		{"gather", Gather, Naive, "(N-1)/N Φ", part},
		{"all-gather", AllGather, Ring, "(N-1)Φ", all},
		{"reduce-scatter", ReduceScatter, Ring, "(N-1)Φ", all},
		{"all-reduce (ring)", AllReduce, Ring, "2(N-1)Φ", func(n int) float64 { return 2 * float64(n-1) }},
	}
}

// BusFactor turns an operation's algorithm bandwidth, the bytes of the whole buffer
// by the time, into bus bandwidth, which is comparable with that of the hardware
// whatever the number of ranks: 2(N-1)/N for an all-reduce, 1 for broadcast and
// reduce, (N-1)/N for the others (nccl-tests, doc/PERFORMANCE.md; gather and scatter
// as in its gather.cu and scatter.cu). It is 0 for fewer than 1 rank.
func BusFactor(op Op, ranks int) float64 {
	if ranks < 1 {
		return 0
	}
	factor := float64(ranks-1) / float64(ranks)
	switch op {
	case AllReduce:
		return 2 * factor
	case Broadcast, Reduce:
		return 1
	}
	return factor
}
