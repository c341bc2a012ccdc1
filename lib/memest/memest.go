// Package memest estimates the memory of training a Transformer, before any device is touched, as a ledger: parameters,
// gradients, optimizer states, activations operation by operation, buffers; each line with its formula, its values and
// its source.
//
// [Estimate] takes a [Setup]: a model of lib/cost, a batch, and how the run is laid out, computed and saved. What it says
// of the engine [Compiled] is tested against what XLA plans for lib/gpt on CPUs: in each of the test's runs states to the
// byte, the rest from 5% below to 10% above. Further off were, of 76 more runs, six: batches of 32 tokens with Lion and with
// Adafactor (11% and 8% below), plans that recompute the up projection alone (11% above) or both the mean of the values and
// the sum after it (6% below), and of a model with ReLU, RMSNorm and no biases whole blocks (13% above) and a plan that
// [Recompute] chose (7% below). What lib/compress keeps is not known to it. Of a number of parameters alone, [OfParameters] knows the states. [Advise] says what to change when a run
// does not fit. The functions of a published convention, such as [Korthikanti], count as its source does and give its
// numbers, to stand beside ours.
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
