package notebook

import (
	"fmt"
	"os"
)

// Must returns v, or ends the cell if err is not nil, as [Check] does:
//
//	backend := notebook.Must(xla.Open(xla.Devices(8)))
func Must[T any](v T, err error) T {
	Check(err)
	return v
}

// Check does nothing if err is nil. Otherwise it writes the error to the standard error and ends the process with
// status 1, without running deferred calls; in a notebook that ends the cell, as an error. It is for cells and small
// programs: a library returns its errors.
func Check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		flushDisplay()
		os.Exit(1)
	}
}
