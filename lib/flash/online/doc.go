// Package online derives FlashAttention step by step, in plain Go that runs: from softmax to attention, forward and
// backward, in tiles, with all that moves between main memory and the processor counted.
//
// Read it in this order; each step computes the same as the one before, and says what it saves:
//
//  1. memory.go: main memory, fast memory, and the count of what moves
//  2. softmax.go: softmax, in ways that differ in their passes over memory
//  3. state.go: the pair (m, d) that makes two of three passes one, and that merges
//  4. head.go: one head of attention, and attention as three steps
//  5. attention.go: attention in one loop over the keys, for one query at a time
//  6. partial.go: the triple (m, d, o), by which any cut of the keys can be put together again
//  7. blocks.go: tiles of queries and keys, as FlashAttention and FlashAttention-2 have them
//  8. backward.go: gradients from weights that were kept
//  9. backward_blocks.go: gradients in tiles, from weights made again
//
// Scores of −Inf are masked: they weigh nothing, and what sees nothing but them is 0. Scores of +Inf and NaN give NaN.
//
// product.go has the products of matrices that they need, tiles.go the tiles that fit in a fast memory. reference.go
// has attention once more, as directly as can be, for tests of other implementations.
package online
