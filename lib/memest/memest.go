// Package memest predicts the memory of training a Transformer before anything runs on a device. It returns a ledger:
// parameters, gradients, optimizer states, the activations of each operation, and buffers. Every line has its formula,
// the values in it, and its source.
//
// [Estimate] takes a [Setup]: a model of lib/cost, a batch, a layout and options. [OfParameters] lists the states of a
// model of which only the number of parameters is known. [Advise] says what to change when a run does not fit.
// [Korthikanti], [ZeRO], [DeepSpeed], [Accelerate] and [Notes] compute the published formulas, for comparison.
//
// # Accuracy
//
// Tests compare estimates with what XLA plans for lib/gpt on CPUs. States are exact to the byte in every run. The error
// of the sum of activations, logits and temporary memory has these bounds, which the tests check:
//
//	-5% to +10%   Compiled, a full step: the 22 runs that the formulas were fitted to
//	-6% to  +6%   Compiled: 10 runs of other sizes and options, for which no formula was changed
//	-6% to +17%   Compiled: the same 10 with the kernels that programs on CPUs call for matmuls, which need no transposed
//	              operands; in all other rows XLA computes everything
//	-20% to +15%  Compiled: 7 runs that are known to be worse: Lion and Adafactor on 32 tokens; plans that recompute
//	              the up projection alone, or the attention output and the sum after it; and two plans of a model with
//	              ReLU, RMSNorm and no biases: whole blocks, and one from recompute.Choose
//
//	-5% to +5%    Planned, passes of one micro-batch on one device: 7 runs in float32, with no formula of their own
//
//	-25% to +5%   Planned: 3 runs in bfloat16, where XLA's programs for CPUs save more of GELU than custom kernels
//	              need to, and 1 of 32 tokens
//
// For [Planned] on several devices, tests compare only the states, with those of lib/zero and lib/parallel. Its
// activations under tensor, context and pipeline parallelism and its communication buffers follow the cited papers and
// are not measured; nor are those of experts, for which it assumes that none drops a token and each has equally many,
// and of latent attention. Nothing is compared on GPUs. No estimate knows the compressed activations of lib/compress.
//
// All sizes are exact integers, in bytes. [GB] prints them in units of 10⁹.
//
// # Names in formulas
//
//	b  sequences of a micro-batch       t  tensor-parallel degree
//	s  tokens of a sequence             r  t if sequence parallelism splits tokens, else 1
//	h  width                            c  context-parallel degree
//	a  query heads                      n  ranks that ZeRO shards over: data times context parallel
//	k  key and value heads              p  bytes of a number in the type of the passes
//	d  width of a head                  P  parameters (OfParameters)
//	f  hidden width of the MLP          g  bytes of a gradient bucket
//	v  vocabulary                       w  rows of the position table
//	o  bytes that the framework uses    e  expert-parallel degree
//	E  routed experts                   S  shared experts
//	K  experts that a token is sent to  F  hidden width of an expert
//	Q  rank of queries                  L  rank of keys and values (both of latent attention)
//	R  width of a head with positions   V  width of a head of values
//
// ceil(x) rounds up to an integer.
package memest
