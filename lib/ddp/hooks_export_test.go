package ddp

var (
	Largest        = largest
	Orthonormalise = orthonormalise
)
