// Package foreign has foreign.h, the header for C functions that XLA's programs call as kernels (xla.Kernel). Packages
// with such functions import it, so that the header is vendored with them and they are rebuilt when it changes.
package foreign

import _ "embed" // for Header

// Header is the text of foreign.h, for C that is compiled while a program runs.
//
//go:embed foreign.h
var Header string
