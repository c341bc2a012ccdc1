package plan

// Volume is the formula of the total number of bytes that all devices send in an operation.
type Volume struct {
	Name      string
	Op        Op
	Algorithm Algorithm // the formula holds for its plan
	Formula   string    // in Φ bytes and N devices
	Factor    func(ranks int) float64
}

// Volumes is a table of volumes that is often taught. It agrees with [Plan.Count], where
// Φ is the size of the full buffer.
//
// Some texts write Φ for the data on one device. For broadcast, reduce and all-reduce that is the same. For the others
// one side is Φ/N: after a scatter or reduce-scatter, before a gather or all-gather. Where Φ is that part, as the
// counts of NCCL and MPI are, these four lines are N times as large: (N-1)Φ for scatter and gather, N(N-1)Φ for the
// others. The table has no all-to-all; by [Naive] it is (N-1)Φ, Φ the full buffer.
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

// BusFactor turns algorithm bandwidth (bytes of the full buffer over time) into bus bandwidth, which can be compared
// with that of the hardware for any number of ranks: 2(N-1)/N for an all-reduce, 1 for broadcast and reduce, (N-1)/N
// for the others (nccl-tests, doc/PERFORMANCE.md). It is 0 for fewer than 1 rank.
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
