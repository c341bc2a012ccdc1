package plan

import "math/bits"

// once is 1 for all ranks but the root.
func once(rank int) int { return min(rank, 1) }

func (f forms) broadcast(algorithm Algorithm) Traffic {
	N, n := f.ranks, f.n()
	switch algorithm {
	case Ring: // N pieces
		return f.each(max(0, 2*N-2), func(r int) (sent, received Load) {
			if r < N-1 {
				sent = Load{N, n}
			}
			return sent, Load{once(r) * N, once(r) * n}
		})
	case Tree:
		return f.each(f.log(), func(r int) (sent, received Load) {
			k := children(r, N)
			return Load{k, k * n}, Load{once(r), once(r) * n}
		})
	case HalvingDoubling:
		return f.scatter(Tree).then(f.allGather(RecursiveDoubling))
	case Hierarchical:
		count := (N + f.group - 1) / f.group
		return f.each(ceilLog(count)+ceilLog(f.group), func(r int) (sent, received Load) {
			group, place := r/f.group, r%f.group
			k := children(place, min(f.group, N-group*f.group))
			if place == 0 {
				k += children(group, count)
			}
			return Load{k, k * n}, Load{once(r), once(r) * n}
		})
	}
	return f.each(N-1, func(r int) (sent, received Load) {
		if r == 0 {
			return Load{N - 1, (N - 1) * n}, Load{}
		}
		return Load{}, Load{1, n}
	})
}

func (f forms) scatter(algorithm Algorithm) Traffic {
	N := f.ranks
	if algorithm == Tree {
		return f.each(f.log(), func(r int) (sent, received Load) {
			all := f.span(r, below(r, N))
			return Load{children(r, N), all - f.part(r)}, Load{once(r), once(r) * all}
		})
	}
	return f.each(N-1, func(r int) (sent, received Load) {
		if r == 0 {
			return Load{N - 1, f.n() - f.part(0)}, Load{}
		}
		return Load{}, Load{1, f.part(r)}
	})
}

func (f forms) allGather(algorithm Algorithm) Traffic {
	N, n := f.ranks, f.n()
	others := func(r int) Load { return Load{N - 1, n - f.part(r)} } // one message for each other part
	switch algorithm {
	case Naive:
		return f.of(Gather, Naive).then(f.broadcast(Naive))
	case Ring:
		return f.each(N-1, func(r int) (sent, received Load) { return others(r + 1), others(r) })
	case OneShot:
		return f.each(min(1, N-1), func(r int) (sent, received Load) {
			return Load{N - 1, (N - 1) * f.part(r)}, others(r)
		})
	case BidirectionalRing:
		return f.each(N/2, func(r int) (sent, received Load) {
			right, left := N/2, (N-1)/2
			return Load{N - 1, f.span(r-right+1, right) + f.span(r, left)}, others(r)
		})
	case Hierarchical:
		g := f.group
		G := N / g
		return f.each(G+g-2, func(r int) (sent, received Load) {
			next := r/g*g + (r+1)%g // the next rank of the group
			between := f.column(r%g) - f.part(r+g)
			inside := n - f.column(next%g)
			return Load{G + g - 2, between + inside}, Load{G + g - 2, n - f.part(r)}
		})
	}
	// Recursive doubling, or Bruck's where N is no power of two.
	return f.each(f.log(), func(r int) (sent, received Load) {
		bytes := 0
		for k := 1; k < N; k *= 2 {
			if isPower(N) {
				bytes += f.span(r&^(k-1), k)
			} else {
				bytes += f.span(r, min(k, N-k))
			}
		}
		return Load{f.log(), bytes}, Load{f.log(), n - f.part(r)}
	})
}

// column is the bytes of the parts that belong to place j of all groups.
func (f forms) column(j int) int {
	bytes := 0
	for r := j; r < f.ranks; r += f.group {
		bytes += f.part(r)
	}
	return bytes
}

func (f forms) reduceScatter(algorithm Algorithm) Traffic {
	N, n := f.ranks, f.n()
	switch algorithm {
	case Ring: // mirrors the ring to the left, in which r sends all but part r-1
		return f.each(N-1, func(r int) (sent, received Load) {
			return Load{N - 1, n - f.part(r)}, Load{N - 1, n - f.part(r-1)}
		})
	case OneShot:
		return f.allGather(OneShot).mirror()
	case HalvingDoubling:
		return f.allGather(RecursiveDoubling).mirror()
	}
	return f.allGather(algorithm).mirror()
}

func (f forms) allReduce(algorithm Algorithm) Traffic {
	N, n := f.ranks, f.n()
	switch algorithm {
	case OneShot:
		return f.each(min(1, N-1), func(int) (sent, received Load) {
			all := Load{N - 1, (N - 1) * n}
			return all, all
		})
	case Naive, Tree:
		return f.broadcast(algorithm).mirror().then(f.broadcast(algorithm))
	case HalvingDoubling:
		return f.reduceScatter(algorithm).then(f.allGather(RecursiveDoubling))
	case RecursiveDoubling:
		log := bits.Len(uint(N)) - 1
		folded := N - 1<<log
		rounds := log
		if folded > 0 {
			rounds += 2
		}
		return f.each(rounds, func(r int) (sent, received Load) {
			k := log
			if r < 2*folded {
				k = 1 // handed over and got back
				if r%2 == 0 {
					k += log
				}
			}
			return Load{k, k * n}, Load{k, k * n}
		})
	}
	return f.reduceScatter(algorithm).then(f.allGather(algorithm))
}

func (f forms) allToAll(algorithm Algorithm) Traffic {
	N, n := f.ranks, f.n()
	switch algorithm {
	case Ring:
		// Blocks that have e hops to go leave the rank in N-e of the rounds.
		sent := func(r int) Load {
			bytes := 0
			for e := 1; e < N; e++ {
				bytes += (N - e) * f.part(r+e)
			}
			return Load{N - 1, bytes}
		}
		return f.each(N-1, func(r int) (Load, Load) { return sent(r), sent((r - 1 + N) % N) })
	case RecursiveDoubling:
		// In the round of bit k, blocks leave for all distances with that bit; of their
		// way, the bits from k up are still to go.
		sent := func(r, k int) int {
			bytes := 0
			for d := 1; d < N; d++ {
				if d&k != 0 {
					bytes += f.part(r + d&^(k-1))
				}
			}
			return bytes
		}
		return f.each(f.log(), func(r int) (out, in Load) {
			for k := 1; k < N; k *= 2 {
				out, in = out.plus(Load{1, sent(r, k)}), in.plus(Load{1, sent(r-k, k)})
			}
			return out, in
		})
	case Hierarchical:
		g := f.group
		G := N / g
		return f.each(min(1, g-1)+min(1, G-1), func(r int) (sent, received Load) {
			column := f.column(r % g)
			messages := g - 1 + G - 1
			return Load{messages, n - column + g*(column-f.part(r))},
				Load{messages, (g-1)*column + (G-1)*g*f.part(r)}
		})
	}
	rounds := N - 1
	if algorithm == OneShot {
		rounds = min(1, N-1)
	}
	return f.each(rounds, func(r int) (sent, received Load) {
		return Load{N - 1, n - f.part(r)}, Load{N - 1, (N - 1) * f.part(r)}
	})
}
