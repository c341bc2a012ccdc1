//go:build !linux

package tests

import (
	"errors"
	"os"
)

// stderrOf opens another process's standard error, which only Linux lets us.
func stderrOf(int) (*os.File, error) { return nil, errors.ErrUnsupported }
