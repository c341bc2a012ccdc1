// Package memest estimates the memory of training a Transformer, before any device is touched, as a ledger: parameters,
// gradients, optimizer states, activations operation by operation, buffers; each line with its formula, its values and
// its source.
//
// [Estimate] takes a [Setup]: a model of lib/cost, a batch, and how the run is laid out, computed and saved. Of a
// number of parameters alone, [OfParameters] knows the states. [Advise] says what to change when a run does not fit.
// The functions of a published convention, such as [Korthikanti], count as its source does and give its numbers, to
// stand beside ours.
//
// # What is measured
//
// Tests compare estimates with what XLA plans for lib/gpt on CPUs. States are exact to the byte in each run. The sum of
// activations, logits and temporary memory is off as follows; the tests hold it to these bounds.
//
//	-5% to +10%   Compiled, a whole step: 22 runs from which the formulas and their special cases were made
//	-6% to  +6%   Compiled: 10 runs of other sizes and options, for which no formula was changed
//	-20% to +15%  Compiled: 7 runs that are known to be further off: Lion and Adafactor on 32 tokens, plans that
//	              recompute the up projection alone or both the mean of the values and the sum after it, and of a model
//	              with ReLU, RMSNorm and no biases whole blocks and a plan that recompute.Choose chose
//	-5% to +5%    Planned, the passes of one micro-batch on one device: 7 runs in float32, with no formula of their own
//	-25% to +5%   Planned: 3 runs in bfloat16, where XLA's programs for CPUs keep more of GELU than kernels of one's
//	              own need to, and 1 of 32 tokens
//
// Of [Planned] on several devices only states are compared, with what lib/zero and lib/parallel hold (their tests). Its
// activations under tensor, context and pipeline parallelism, and its lines of communication, are formulas of the
// papers that they name, and are not measured. Nothing is compared on GPUs. What lib/compress keeps is not known to any
// estimate.
//
// All sizes are exact whole numbers of bytes. [GB] is 10⁹ of them and [GiB] 2³⁰.
//
// # Names in formulas
//
//	b  sequences of a micro-batch       t  tensor-parallel degree
//	s  tokens of a sequence             r  t where sequence parallelism divides tokens by it, else 1
//	h  width                            c  context-parallel degree
//	a  query heads                      n  ranks that ZeRO shards over: data times context parallel
//	k  key and value heads              p  bytes of a number of the passes' type
//	d  width of a head                  P  parameters, where nothing else is known
//	f  width inside the MLP             g  bytes of a gradient bucket
//	v  vocabulary                       w  rows of the position table
//	o  bytes that the framework takes
//
// ceil(x) is the least whole number that is not below x.
package memest
