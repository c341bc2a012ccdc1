//go:build !linux

package tests

import (
	"errors"
	"os"
)

// stderrOf opens another process's standard error; this is possible only on Linux.
func stderrOf(int) (*os.File, error) { return nil, errors.ErrUnsupported }
