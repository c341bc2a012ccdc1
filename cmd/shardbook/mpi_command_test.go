package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/shardbook/shardbook/internal/systest"
)

// mpiCommand is the command, built once with the tag mpi. A machine without Open MPI and without the means to get it
// skips the test; CI and root never do.
func mpiCommand(t *testing.T) (path string) {
	t.Helper()
	systest.OpenMPI(t)
	path, err := builtCommand()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var builtCommand = sync.OnceValues(func() (string, error) {
	folder, err := os.MkdirTemp("", "shardbook-mpi-")
	if err != nil {
		return "", err
	}
	builtIn = folder
	path := filepath.Join(folder, "shardbook")
	output, err := exec.Command("go", "build", "-tags", "mpi", "-o", path, ".").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, output)
	}
	return path, nil
})

// builtIn is the folder of the command, if it was built, which TestMain removes.
var builtIn string
