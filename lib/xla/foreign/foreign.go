// Package foreign holds foreign.h, which C functions are written with that XLA's programs call as kernels (xla.Kernel).
// Packages with such functions import it, so that the header goes where they go and they are built anew when it
// changes.
package foreign

import _ "embed" // for Header

// Header is the text of foreign.h, for C that is compiled while a program runs.
//
//go:embed foreign.h
var Header string
