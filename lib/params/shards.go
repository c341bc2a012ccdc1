package params

// Shards says which part of a model each device of a mesh has, with tensor and sequence (context) parallelism.
type Shards struct {
	// Axis is the mesh axis of tensor parallelism; "" is none. Cuts are the cuts of the model's parameters, in order;
	// nil is a parameter that each device has in full.
	Axis string
	Cuts []*Cut
	// Tokens are the mesh axes of sequence parallelism: their devices have all parameters, and different tokens of the
	// same sequences.
	Tokens []string
	// Between are the mesh axes that split what blocks pass on to each other, along axis 1: those of Tokens, and Axis
	// with Megatron's sequence parallelism. The major one comes first.
	Between []string
}
