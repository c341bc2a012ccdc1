// Package residual has ZeRO-R, which reduces what a training step holds besides the model's states: activations,
// buffers, and memory that is free but in pieces. (Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training
// Trillion Parameter Models", §4.2 and §6; lib/zero has ZeRO-DP, which partitions the states.)
//
//   - P_a, §6.1: devices that compute with parts of the weights (tensor parallelism) have the same activations, and
//     each keeps only its part of a checkpoint between the two passes. [Partition] writes it into the plan of a step,
//     as parallel.Layout has it done.
//   - C_B, §6.2: gradients are fused for communication in buffers of constant size, not in one as large as the model:
//     the buckets of ddp.IntoBuckets, and the units of zero.Shard.
//   - M_D, §6.3: what lives long lies in memory that was reserved for it, so that what lives short leaves no holes
//     between. [Replay] shows with a model of an allocator what becomes of memory without, and [WithRegion] with it.
//
// The price of P_a is one all-gather for each checkpoint in the backward pass, (N−1)/N of its bytes for each of N ranks
// to send. A Megatron block makes two all-reduces in the forward pass, two as it is computed again and two in the
// backward pass, each of (N−1)/N times twice the bytes, so that P_a adds less than 10 % to what tensor parallelism
// sends (§8).
package residual
