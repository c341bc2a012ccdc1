package main

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// GoNB builds every cell into the same file, so that the go command links it again even if the same cell was built
// before. Kernels have this program as their go command, which puts the file of that earlier build back first. The real
// go command then finds that it is up to date, or that it is not, by what it always compares.

// becomeGo runs the go command.
func becomeGo(args []string) error {
	real, err := goTool()
	if err != nil {
		return err
	}
	output := outputOf(args)
	if output == "" {
		return syscall.Exec(real, append([]string{"go"}, args...), os.Environ())
	}
	built := builtBefore(output)
	_ = place(built, output) // where there is none, go links
	cmd := exec.Command(real, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	if ended, ok := err.(*exec.ExitError); ok {
		os.Exit(ended.ExitCode())
	}
	if err == nil {
		_ = place(output, built) // else it is linked again next time
		forgetOldest(filepath.Dir(built))
	}
	return err
}

// builtBytes limits the programs that a kernel keeps.
const builtBytes = 300 << 20

// forgetOldest removes the programs that were built first, until the others fit.
func forgetOldest(folder string) {
	entries, _ := os.ReadDir(folder)
	var all []os.FileInfo
	var total int64
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil {
			all, total = append(all, info), total+info.Size()
		}
	}
	slices.SortFunc(all, func(a, b os.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	for _, info := range all {
		if total <= builtBytes {
			return
		}
		os.Remove(filepath.Join(folder, info.Name()))
		total -= info.Size()
	}
}

// goTool finds the real go command: the next one on the PATH.
func goTool() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	own, err := os.Stat(self)
	if err != nil {
		return "", err
	}
	for _, folder := range filepath.SplitList(os.Getenv("PATH")) {
		path := filepath.Join(folder, "go")
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && !os.SameFile(info, own) {
			return path, nil
		}
	}
	return "", &exec.Error{Name: "go", Err: exec.ErrNotFound}
}

// outputOf returns the file that a build of a cell writes, or "" for other commands.
func outputOf(args []string) string {
	if i := slices.Index(args, "-o"); len(args) > 2 && args[0] == "build" && i > 0 && i+1 < len(args) {
		return args[i+1]
	}
	return ""
}

// builtBefore returns where the program with the same source is kept. It is in GoNB's folder, which ends with the
// kernel; the go command ignores names that begin with a dot.
func builtBefore(output string) string {
	hash := sha256.New()
	names, _ := filepath.Glob(filepath.Join(filepath.Dir(output), "*.go"))
	for _, name := range names {
		if file, err := os.Open(name); err == nil {
			io.Copy(hash, file)
			file.Close()
		}
	}
	return filepath.Join(filepath.Dir(output), ".built", hex.EncodeToString(hash.Sum(nil)))
}

// place makes a file available under another name, in place of one that has the name.
func place(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	if _, err := os.Stat(from); err != nil {
		return err
	}
	os.Remove(to) // go would write into the file that both names have
	return os.Link(from, to)
}

// isGo reports whether this program was started as the go command.
func isGo() bool { return strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe") == "go" }
