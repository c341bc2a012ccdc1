// Package kerneltest sets up the JupyterLab kernel for tests.
package kerneltest

import (
	"testing"

	"github.com/shardbook/shardbook/kernel"
)

// Ready returns the kernel of this checkout, set up in the user's cache folder. The first test run on a machine
// installs it, as the first `shardbook lab` would.
func Ready(t testing.TB) *kernel.Kernel {
	t.Helper()
	k, err := kernel.New(".", "")
	if err != nil {
		t.Fatal(err)
	}
	progress := func(part string, _, _ int, what string) { t.Logf("%s: %s", part, what) }
	if err := k.Setup(t.Context(), progress); err != nil {
		t.Fatal(err)
	}
	return k
}
