package main

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os/exec"

	"github.com/spf13/cobra"

	"github.com/shardbook/shardbook/internal/cache"
	"github.com/shardbook/shardbook/internal/pyenv"
	"github.com/shardbook/shardbook/lib/notebook"
)

// requirements pins the peers' packages with hashes. It is made from requirements.in by
//
//	uv pip compile --no-deps --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
//		requirements.in -o requirements.txt
//
//go:embed requirements.txt
var requirements string

const (
	// envPython names the environment variable with the path of a Python that has the peers' packages.
	envPython = "SHARDBOOK_BENCH_PYTHON"

	// minPython is the oldest Python that the pins are for.
	minPython = "3.11"

	// pythonBytes is the space that the environment needs while pip fills it.
	pythonBytes = 12e9

	needMPI = "Open MPI is a system package: install it " +
		"(Debian, Ubuntu: apt-get install openmpi-bin libopenmpi-dev pkg-config)"
)

func installCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "install",
		Short: "Install the peers: PyTorch, JAX, mpi4py and the Rust kernel evcxr, pinned, into the cache folder",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			part, err := peersPart()
			if err != nil {
				return err
			}
			dir, err := ensure(cmd.Context(), part, pyenv.Packages(requirements)+2)
			if err != nil {
				return err
			}
			fmt.Println(pyenv.Python(dir))
			rust, err := evcxrPart(cmd.Context())
			if err == nil {
				_, err = ensure(cmd.Context(), rust, 0)
			}
			if err != nil {
				err = fmt.Errorf("the Python packages are installed, but not the Rust kernel: %w", err)
			}
			if _, notFound := exec.LookPath("mpirun"); notFound != nil {
				err = errors.Join(err, errors.New("there is no mpirun: "+needMPI))
			}
			return err
		},
	}
}

// ensure installs a part if it is not there, with a progress bar of about that number of steps.
func ensure(ctx context.Context, part cache.Part, steps int) (dir string, err error) {
	if dir, ok := part.Installed(); ok {
		return dir, nil
	}
	bar := notebook.NewBar("installing "+part.Name, steps)
	defer bar.Done()
	return part.Ensure(ctx, func(_, _ int, what string) { bar.Step("%s", what) })
}

// peersPart is the private Python environment with the peers' packages.
func peersPart() (cache.Part, error) {
	root, err := cache.Dir("")
	if err != nil {
		return cache.Part{}, err
	}
	interpreter, version, err := pyenv.Find(context.Background(), minPython)
	sum := sha256.Sum256([]byte(requirements + interpreter + version))
	return cache.Part{
		Root:    root,
		Name:    "bench-peers",
		Version: hex.EncodeToString(sum[:8]),
		Bytes:   pythonBytes,
		Install: func(ctx context.Context, dir string, report cache.Progress) error {
			// The pins are all there is to it: pip follows no dependencies.
			return pyenv.Install(ctx, interpreter, dir, requirements, report, "--no-cache-dir", "--no-deps")
		},
	}, err
}

// peersPython returns the Python to run the peers with: the one named, or the one installed.
func peersPython(named string) (string, error) {
	if named == "" {
		part, err := peersPart()
		if err != nil {
			return "", err
		}
		dir, ok := part.Installed()
		if !ok {
			return "", fmt.Errorf("the peers are not installed in %s: run \"go run ./bench install\", "+
				"or name a Python that has them by --python", part.Root)
		}
		named = pyenv.Python(dir)
	}
	if _, err := exec.LookPath(named); err != nil {
		return "", fmt.Errorf("--python=%s: %w", named, err)
	}
	return named, nil
}
