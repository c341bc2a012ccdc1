package gpt

// referenceText is the training text of the reference model, 403 bytes.
const referenceText = "A collective moves data between devices so that each of them ends with what it needs. " +
	"In an all-reduce every device ends with the sum; in a reduce-scatter, with its part of " +
	"it; in an all-gather, with every part. Data-parallel training sums the gradients, the " +
	"sharded optimizers keep one part of the state on each device, tensor parallelism splits " +
	"the matrices themselves and pipelines split the layers. "

// referenceStride is the number of bytes from the start of one sequence to the next.
const referenceStride = 97

// Reference returns the training text of the reference model. Unlike other corpora it is cyclic, and sequence b of step
// s starts at its byte (s·B + b)·97: together with the initial weights of [Config.Init] this fixes a training run, in
// any language. Its Seed has no effect, and any sequence length will do.
func Reference() Corpus {
	return Corpus{Name: "reference", Text: []byte(referenceText), cyclic: true}
}
