package main

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shardbook/shardbook/internal/cache"
	"github.com/shardbook/shardbook/lib/notebook"
)

// requirements pins the peers' packages with hashes. It is made from
// requirements.in by
//
//	uv pip compile --no-deps --universal --python-version 3.11 --generate-hashes --no-annotate --no-header requirements.in -o requirements.txt
//
//go:embed requirements.txt
var requirements string

const (
	// envPython names the environment variable with the path of a Python that has
	// the peers' packages.
	envPython = "SHARDBOOK_BENCH_PYTHON"

	// pythonBytes is the space that the environment needs while pip fills it.
	pythonBytes = 12e9

	needMPI = "Open MPI is a system package: install it (Debian, Ubuntu: apt-get install openmpi-bin libopenmpi-dev)"
)

func installCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "install",
		Short: "Install the peers: PyTorch, JAX and mpi4py, pinned, into the cache folder",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			part, err := peersPart()
			if err != nil {
				return err
			}
			dir, ok := part.Installed()
			if !ok {
				bar := notebook.NewBar("installing", installSteps())
				defer bar.Done()
				if dir, err = part.Ensure(cmd.Context(), func(_, _ int, what string) { bar.Step("%s", what) }); err != nil {
					return err
				}
			}
			fmt.Println(pythonIn(dir))
			if _, err := exec.LookPath("mpirun"); err != nil {
				return errors.New("the Python packages are installed, but there is no mpirun: " + needMPI)
			}
			return nil
		},
	}
}

// peersPart is the private Python environment with the peers' packages.
func peersPart() (cache.Part, error) {
	root, err := cache.Dir("")
	if err != nil {
		return cache.Part{}, err
	}
	interpreter, version, err := findPython()
	sum := sha256.Sum256([]byte(requirements + interpreter + version))
	return cache.Part{
		Root:    root,
		Name:    "bench-peers",
		Version: hex.EncodeToString(sum[:8]),
		Bytes:   pythonBytes,
		Install: func(ctx context.Context, dir string, report cache.Progress) error {
			return installPython(ctx, interpreter, dir, report)
		},
	}, err
}

// findPython returns the path and version of a Python that the pins are for.
func findPython() (path, version string, err error) {
	const probe = `import sys, venv, ensurepip; print("%d.%d.%d" % sys.version_info[:3]); assert sys.version_info >= (3, 11)`
	const need = "the peers need Python 3.11 or newer with its venv module (Debian, Ubuntu: apt-get install python3 python3-venv)"
	if path, err = exec.LookPath("python3"); err != nil {
		return "", "", errors.New("no python3 on the PATH: " + need)
	}
	output, err := exec.Command(path, "-I", "-c", probe).Output()
	version = strings.TrimSpace(string(output))
	if err != nil {
		return "", "", fmt.Errorf("%s (version %q) will not do: %s", path, version, need)
	}
	return path, version, nil
}

// installSteps is how often installPython reports.
func installSteps() int {
	steps := 2
	for line := range strings.Lines(requirements) {
		if !strings.HasPrefix(line, " ") { // a package, and not one of its hashes
			steps++
		}
	}
	return steps
}

// installPython makes the environment. pip follows no dependencies: the pins are
// all there is to it.
func installPython(ctx context.Context, interpreter, dir string, report cache.Progress) error {
	pins := filepath.Join(dir, "requirements.txt")
	if err := os.WriteFile(pins, []byte(requirements), 0o644); err != nil {
		return err
	}
	report(0, 0, "making a Python environment")
	if output, err := exec.CommandContext(ctx, interpreter, "-I", "-m", "venv", dir).CombinedOutput(); err != nil {
		return fmt.Errorf("%s -m venv: %w: %s", interpreter, err, output)
	}
	pip := exec.CommandContext(ctx, pythonIn(dir), "-I", "-m", "pip", "install", "--no-input", "--disable-pip-version-check",
		"--progress-bar=off", "--no-cache-dir", "--no-deps", "--require-hashes", "-r", pins)
	// Without the user's wishes for other places.
	pip.Env = append(os.Environ(), "PIP_USER=0", "PIP_TARGET=", "PIP_PREFIX=", "PIP_ROOT=", "PIP_REQUIRE_VIRTUALENV=")
	var said tail
	pip.Stdout = lineWriter{&said, func(line string) {
		if name, ok := strings.CutPrefix(line, "Collecting "); ok {
			name, _, _ = strings.Cut(name, "==")
			report(0, 0, "downloading "+name)
		} else if strings.HasPrefix(line, "Installing collected packages") {
			report(0, 0, "unpacking the packages")
		}
	}}
	pip.Stderr = &said
	if err := pip.Run(); err != nil {
		return fmt.Errorf("pip: %w: %s; check the network and pip's settings", err, said.text())
	}
	return nil
}

// lineWriter shows each write, of a line or a few, to a function too.
type lineWriter struct {
	*tail
	onLine func(string)
}

func (w lineWriter) Write(p []byte) (int, error) {
	for line := range strings.Lines(string(p)) {
		w.onLine(strings.TrimSpace(line))
	}
	return w.tail.Write(p)
}

func pythonIn(dir string) string { return filepath.Join(dir, "bin", "python") }

// peersPython returns the Python to run the peers with: the one named, or the one
// installed.
func peersPython(named string) (string, error) {
	if named == "" {
		part, err := peersPart()
		if err != nil {
			return "", err
		}
		dir, ok := part.Installed()
		if !ok {
			return "", fmt.Errorf("the peers are not installed in %s: run \"go run ./bench install\", or name a Python that has them by --python", part.Root)
		}
		named = pythonIn(dir)
	}
	if _, err := exec.LookPath(named); err != nil {
		return "", fmt.Errorf("--python=%s: %w", named, err)
	}
	return named, nil
}
