// Package recompute trades time for memory: activations that the forward pass does not save and the backward pass
// recomputes, known as activation recomputation or gradient checkpointing (Chen et al. 2016, "Training Deep Nets with
// Sublinear Memory Cost").
//
// [Call] recomputes any function of a graph, [Chain] a deep network in segments. For Transformers a [Policy] names what
// is saved and what is recomputed, operation by operation, and [Choose] finds the choice that recomputes least within a
// memory budget. Losses and gradients do not change.
package recompute
