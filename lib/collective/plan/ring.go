package plan

// ring is the all-gather in which every rank has one neighbour it sends to and one
// it receives from: in round 0 each passes on its own chunk, and then always the one
// it has just received. After N-1 rounds all have everything. way is 1 for sending
// to the next higher rank, -1 for the next lower.
//
// Its mirror image, a reduce-scatter, sends to the other neighbour; so an all-reduce
// takes one of each way, and uses each link in one direction. A rank sends
// 2(N-1)/N of the data in all, which is the least there is, in 2(N-1) rounds, which
// is many (Patarasuk & Yuan 2009, "Bandwidth optimal all-reduce algorithms for
// clusters of workstations").
func ring(ranks, way int) schedule {
	var s schedule
	for k := range ranks - 1 {
		var round []move
		for r := range ranks {
			to, chunk := (r+way+ranks)%ranks, ((r-way*k)%ranks+ranks)%ranks
			round = append(round, move{r, to, []int{chunk}})
		}
		s = append(s, round)
	}
	return s
}

// chain is the broadcast along a line of ranks from rank 0. The data is cut in
// pieces, and a rank passes one piece on while it receives the next, so that after
// the N-1 rounds in which the first piece travels, the line is full: N-2+pieces
// rounds in all, and every rank but the last sends the data once (van de Geijn &
// Watts 1997, "SUMMA", use such a pipeline). The mirror image is a
// pipelined reduce.
func chain(ranks, pieces int) schedule {
	if ranks == 1 {
		return nil
	}
	var s schedule
	for t := range ranks - 2 + pieces {
		var round []move
		for v := max(0, t-pieces+1); v <= min(t, ranks-2); v++ {
			round = append(round, move{v, v + 1, []int{t - v}})
		}
		s = append(s, round)
	}
	return s
}
