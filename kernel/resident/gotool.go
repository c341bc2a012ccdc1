package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// GoNB writes a cell's program anew for every run, with all that has been declared since. So the go command compiles
// and links it again even if the cell ran before and is the same. Kernels have this program as their go command, which
// keeps what was built, by what a cell's main depends on.

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
	b := buildIn(filepath.Dir(output))
	if b.place(output) {
		return nil
	}
	os.Remove(output) // it may be another name of one that is kept
	cmd := exec.Command(real, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	if ended, ok := err.(*exec.ExitError); ok {
		os.Exit(ended.ExitCode())
	}
	if err == nil {
		b.keep(output)
	}
	return err
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

// isGo reports whether this program was started as the go command.
func isGo() bool { return filepath.Base(os.Args[0]) == "go" }

// build is a program to be built, in GoNB's folder, which ends with the kernel.
type build struct {
	kept  string         // where it is kept, in a folder that the go command ignores; "": nowhere
	lines map[string]int // where the declarations on which it depends begin
}

// buildIn describes the program in a folder.
func buildIn(folder string) build {
	runs := readSource(folder).runs()
	key, ok := runs.key(folder)
	if !ok {
		return build{}
	}
	b := build{filepath.Join(folder, ".built", key), map[string]int{}}
	for name, d := range runs {
		b.lines[name] = d.line
	}
	return b
}

// place makes a program that was built before available, if there is one. If its declarations were in other lines than
// now, it puts in its place what corrects the lines in its messages, by which GoNB finds the cell.
func (b build) place(output string) bool {
	text, err := os.ReadFile(b.kept + ".lines")
	var before map[string]int
	if b.kept == "" || err != nil || json.Unmarshal(text, &before) != nil {
		return false
	}
	os.Remove(output)
	var lines [][2]int
	moved := false
	for name, line := range before {
		lines = append(lines, [2]int{line, b.lines[name]})
		moved = moved || line != b.lines[name]
	}
	if !moved {
		return os.Link(b.kept, output) == nil
	}
	slices.SortFunc(lines, func(a, b [2]int) int { return a[0] - b[0] })
	self, err := os.Executable()
	if err != nil {
		return false
	}
	return relocated{b.kept, lines}.write(output, self) == nil
}

// keep keeps a program that was built.
func (b build) keep(output string) {
	text, err := json.Marshal(b.lines)
	if b.kept == "" || err != nil || os.MkdirAll(filepath.Dir(b.kept), 0o700) != nil {
		return
	}
	os.Remove(b.kept)
	if os.Link(output, b.kept) == nil {
		_ = os.WriteFile(b.kept+".lines", text, 0o600) // without it, it is built again
	}
	forgetOldest(filepath.Dir(b.kept))
}

// builtBytes limits the programs that a kernel keeps.
const builtBytes = 300 << 20

// forgetOldest removes the programs that were built first, until the others fit.
func forgetOldest(folder string) {
	entries, _ := os.ReadDir(folder)
	var all []os.FileInfo
	var total int64
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil && !strings.HasSuffix(entry.Name(), ".lines") {
			all, total = append(all, info), total+info.Size()
		}
	}
	slices.SortFunc(all, func(a, b os.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	for _, info := range all {
		if total <= builtBytes {
			return
		}
		path := filepath.Join(folder, info.Name())
		os.Remove(path + ".lines")
		os.Remove(path)
		total -= info.Size()
	}
}
