package main

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shardbook/shardbook/lib/notebook"
)

// packed are the packages whose tests say something on a GPU.
var packed = []string{"lib/xla", "lib/native", "lib/flash", "lib/fused", "lib/precision", "lib/gpt", "lib/train",
	"lib/trace", "lib/offload", "lib/parallel"}

// packScript runs what is packed.
//
//go:embed pack.sh
var packScript []byte

func packCommand() *cobra.Command {
	var packages []string
	cmd := &cobra.Command{
		Use: "pack FILE.tar.xz",
		Short: "Pack the commands, the tests for GPUs and a script that runs and records them, for a machine without Go " +
			"or a network",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return pack(cmd.Context(), args[0], packages) },
	}
	cmd.Flags().StringSliceVar(&packages, "packages", packed, "folders of the packages with the tests")
	return cmd
}

// pack builds in a temporary folder, in which each package's tests lie beside its testdata. The repository must be the
// working directory.
func pack(ctx context.Context, path string, packages []string) error {
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	bar := notebook.NewBar("packing", len(packages)+3)
	defer bar.Done()
	run := func(what, name string, args ...string) error {
		bar.Step("%s", what)
		if said, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), cmp.Or(ctx.Err(), err), said)
		}
		return nil
	}
	build := func(in, out string, args ...string) error {
		args = append(args, "-trimpath", "-ldflags=-s -w", "-o", filepath.Join(dir, out), "./"+in)
		return run(in, "go", args...)
	}
	if err := build("bench", "shardbook-bench", "build"); err != nil {
		return err
	}
	if err := build("cmd/shardbook", "shardbook", "build"); err != nil {
		return err
	}
	for _, in := range packages {
		to := filepath.Join("tests", filepath.FromSlash(in))
		if err := build(in, filepath.Join(to, "run.test"), "test", "-c"); err != nil {
			return err
		}
		data := filepath.Join(in, "testdata")
		if _, err := os.Stat(data); err == nil {
			if err := os.CopyFS(filepath.Join(dir, to, "testdata"), os.DirFS(data)); err != nil {
				return err
			}
		}
	}
	module, err := os.ReadFile("go.mod") // by which tests know the folder of the repository
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "tests", "go.mod"), module, 0o644)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "run.sh"), packScript, 0o755)
	}
	if err != nil {
		return err
	}
	// The programs have most of their code in common: a window as large as all of them makes the file half the size.
	err = run("compressing", "tar", "--use-compress-program=xz -T1 --lzma2=preset=3,dict=256MiB", "-C", dir, "-cf", path, ".")
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err == nil {
		fmt.Printf("%s: %s MiB\n", path, mebibytes(info.Size()))
	}
	return err
}
