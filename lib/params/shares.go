package params

// Shares says what each device of a mesh has of a model that devices compute together.
type Shares struct {
	// Axis is the mesh axis along which devices share parameters; "" is none. Cuts says how, in the order of the
	// model's parameters: nil is one that each device has whole.
	Axis string
	Cuts []*Cut
	// Tokens are mesh axes along which devices have all parameters, and other tokens of the same rows.
	Tokens []string
	// Between are the mesh axes along which what blocks of the model give each other is cut, along its axis 1: those of
	// Tokens, and Axis where its devices have other tokens between layers. The major one comes first.
	Between []string
}
