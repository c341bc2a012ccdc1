// Package residual has ZeRO-R, which reduces the memory of a training step besides the model's states (Rajbhandari et
// al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", §4.2 and §6; lib/zero has ZeRO-DP,
// which shards the states).
//
//   - P_a, §6.1: devices of a tensor-parallel group have the same activations, so each saves only a shard of an
//     activation checkpoint. [Partition] rewrites a plan for it; parallel.Layout has an option.
//   - C_B, §6.2: gradients are communicated in buffers of constant size, not in one as large as the model: the buckets
//     of ddp.IntoBuckets, and the units of zero.Shard.
//   - M_D, §6.3, against fragmentation, has no part here: XLA plans the buffers of each program in one region.
//
// P_a costs one all-gather per checkpoint in the backward pass, for which each of N ranks sends (N−1)/N of its bytes. A
// Megatron block has two all-reduces each in the forward pass, its recomputation and the backward pass, each of
// 2(N−1)/N times these bytes, so P_a adds less than 10 % (§8).
package residual
