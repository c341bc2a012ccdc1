package plan

// The algorithms of long vectors, in about 2·log2 N rounds: one half halves what a
// rank works on with each round, the other doubles what it has (see doubling). The
// all-reduce and the reduce-scatter of this kind are in the table of recipes.

// scatterThenAllGather is the broadcast of long vectors: a binomial tree scatters
// the chunks, and an all-gather gives them to all. A rank sends about twice the data
// however many there are, where a tree's root sends it log2 N times (Barnett,
// Gupta, Payne, Shuler, van de Geijn & Watts 1994, "Interprocessor collective
// communication library"; Thakur, Rabenseifner & Gropp 2005). Ranks
// receive again the few chunks they already hold for their subtree.
func (b *builder) scatterThenAllGather() {
	b.cut(b.Ranks)
	b.spread(b.fromRoot(binomial(b.Ranks, subtree)))
	b.spread(b.fromRoot(doubling(b.Ranks)))
}

// reduceScatterThenGather is the reduce of long vectors, the broadcast's mirror
// image: a reduce-scatter, and a binomial tree that gathers its chunks
// (Rabenseifner 2004).
func (b *builder) reduceScatterThenGather() {
	b.cut(b.Ranks)
	b.reduce(b.fromRoot(doubling(b.Ranks).mirror()))
	b.spread(b.fromRoot(binomial(b.Ranks, subtree).mirror()))
}
