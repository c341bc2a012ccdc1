package kernel

import _ "embed" // for CUDA

// CUDA is the source of the kernels for NVIDIA's GPUs: bias_gelu and bias_gelu_gradient.
//
//go:embed gelu.cu
var CUDA string
