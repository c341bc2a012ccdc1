// Package half holds half.h: conversions of 16-bit floats for C. Packages whose C includes it import it, so that it
// goes where they go and they are built anew when it changes.
package half
