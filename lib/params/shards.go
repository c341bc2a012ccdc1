package params

import "slices"

// Shards says which part of a model each device of a mesh has, with tensor, expert and sequence (context) parallelism.
// Devices along Experts have different examples, as those along the axis of data parallelism.
type Shards struct {
	// Axis is the mesh axis of tensor parallelism, and Experts that of expert parallelism; "" is none.
	Axis, Experts string
	// Cuts are the cuts of the model's parameters, in order; nil is a parameter that each device has in full. They are
	// along Axis, or, for experts, along Experts and Axis.
	Cuts []*Cut
	// Tokens are the mesh axes of sequence parallelism: their devices have all parameters, and different tokens of the
	// same sequences.
	Tokens []string
	// Between are the mesh axes that split what blocks pass on to each other, along axis 1: those of Tokens, and Axis
	// with Megatron's sequence parallelism. The major one comes first.
	Between []string
}

// Placed returns the shards with the Along of each cut.
func (s Shards) Placed() Shards {
	s.Cuts = slices.Clone(s.Cuts)
	for i, c := range s.Cuts {
		if c != nil && c.Along == nil {
			s.Cuts[i] = &Cut{c.Axis, c.Index, []string{s.Axis}}
		}
	}
	return s
}
