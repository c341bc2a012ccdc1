// Package online derives FlashAttention step by step in plain Go: from softmax to tiled attention, forward and
// backward. It counts the elements that move between main memory and fast memory.
//
// Read it in this order. Each step computes the same as the one before, with less memory or traffic:
//
//  1. memory.go: main memory, fast memory, and the traffic between them
//  2. softmax.go: softmax with different numbers of passes over memory
//  3. state.go: the pair (m, d), which merges two passes into one
//  4. head.go: one head of attention, and attention as three kernels
//  5. attention.go: attention in one loop over the keys, one query at a time
//  6. partial.go: the triple (m, d, o), which merges attention to parts of the keys
//  7. blocks.go: tiles of queries and keys, as in FlashAttention and FlashAttention-2
//  8. backward.go: gradients from saved weights, then in tiles from recomputed weights
//
// Scores of −Inf are masked: their weights are 0, and a query with only such scores has output 0. Scores of +Inf and
// NaN give NaN.
//
// reference.go has attention as its definition says, for tests of other implementations.
package online
