// Package foreign holds foreign.h, which C functions are written with that XLA's programs call as kernels (xla.Kernel).
// Packages with such functions import it, so that the header goes where they go.
package foreign
