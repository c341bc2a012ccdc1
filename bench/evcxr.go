package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/shardbook/shardbook/internal/cache"
	"github.com/shardbook/shardbook/internal/command"
)

const (
	// evcxrName is the name of the Rust kernel's kernelspec.
	evcxrName = "evcxr"

	// evcxrVersion is the version of the package evcxr_jupyter on crates.io; its lock file pins all others with hashes.
	evcxrVersion = "0.22.0"

	// evcxrRust is the oldest version of Rust that compiles it.
	evcxrRust = "1.95"

	// evcxrBytes is the space that cargo needs while it compiles.
	evcxrBytes = 3e9
)

// evcxrPart is the Rust kernel, compiled by the cargo on the PATH.
func evcxrPart(ctx context.Context) (cache.Part, error) {
	root, err := cache.Dir("")
	if err != nil {
		return cache.Part{}, err
	}
	said, err := exec.CommandContext(ctx, "cargo", "--version").Output() // "cargo 1.95.0 (f2d3ce0bd 2026-03-21)"
	fields := strings.Fields(string(said))
	if err != nil || len(fields) < 2 {
		return cache.Part{}, fmt.Errorf("cargo does not run (%v): evcxr needs Rust %s or newer, from https://rustup.rs", err,
			evcxrRust)
	}
	return cache.Part{
		Root:    root,
		Name:    "bench-evcxr",
		Version: evcxrVersion + "-" + fields[1],
		Bytes:   evcxrBytes,
		Install: installEvcxr,
	}, nil
}

func installEvcxr(ctx context.Context, dir string, report cache.Progress) error {
	build := filepath.Join(dir, "build")
	defer os.RemoveAll(build)
	cargo := command.Command{Name: "cargo", Args: []string{"install", "evcxr_jupyter", "--version=" + evcxrVersion,
		"--locked", "--root=" + dir, "--target-dir=" + build},
		OnLine: func(line string) { report(0, 0, strings.TrimSpace(line)) }}
	if err := cargo.Run(ctx); err != nil {
		return err
	}
	spec, err := json.Marshal(map[string]any{
		"argv":         []string{filepath.Join(dir, "bin", "evcxr_jupyter"), "--control_file", "{connection_file}"},
		"display_name": "Rust", "language": "rust",
	})
	if err != nil {
		return err
	}
	kernels := filepath.Join(dir, "kernels", evcxrName)
	if err := os.MkdirAll(kernels, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(kernels, "kernel.json"), spec, 0o644)
}

// evcxrEnv has the Rust kernel on Jupyter's path.
func evcxrEnv(ctx context.Context, _ place) ([]string, error) {
	part, err := evcxrPart(ctx)
	if err != nil {
		return nil, errUnsupported(err.Error())
	}
	dir, ok := part.Installed()
	if !ok {
		return nil, errUnsupported("evcxr is not installed in " + part.Root + ": run \"go run ./bench install\"")
	}
	return []string{"JUPYTER_PATH=" + dir}, nil
}
