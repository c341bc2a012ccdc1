package native

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // for native.h
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/cpu"

	"github.com/shardbook/shardbook/internal/cache"
	"github.com/shardbook/shardbook/lib/xla/foreign"
)

//go:embed native.h
var header string

// language is a source language and its compiler.
type language struct {
	file     string                   // name of the source in messages
	find     func() ([]string, error) // the compiler's command
	flags    []string                 // of a fast shared library whose own symbols come first
	libs     []string
	hardware func() string // what the compiler's "native" means here
	cuda     bool
}

var inC = language{
	file:     "source.c",
	find:     findC,
	flags:    append([]string{"-O3", "-march=native", "-shared", "-fPIC"}, ownFirst[runtime.GOOS]...),
	libs:     []string{"-lm"},
	hardware: func() string { return fmt.Sprint(cpu.X86, cpu.ARM64) },
}

// ownFirst makes a library's calls of its own functions go to these, even if the process has others of the same names.
// Only linkers on Linux need the flag, and only they know it.
var ownFirst = map[string][]string{"linux": {"-Wl,-Bsymbolic"}}

func findC() ([]string, error) {
	if command := strings.Fields(os.Getenv("CC")); len(command) > 0 {
		return command, nil
	}
	for _, name := range []string{"gcc", "cc"} {
		if _, err := exec.LookPath(name); err == nil {
			return []string{name}, nil
		}
	}
	return nil, errors.New("native: there is no C compiler, gcc or cc, on the PATH: install gcc, or set CC to a " +
		"compiler")
}

// build compiles the text, unless the result is cached, and returns the library's path, whose name is a hash of all
// inputs. Several processes may build at once: each writes a temporary file and renames it.
func (in language) build(text string, c config) (path string, err error) {
	command, err := in.find()
	if err != nil {
		return "", err
	}
	version, err := versionOf(command[0])
	if err != nil {
		return "", fmt.Errorf("native: the compiler %q is not there: %w; install it, or set CC (NVCC "+
			"for CUDA) to another", command[0], err)
	}
	root, err := cache.Dir(c.cacheDir)
	if err != nil {
		return "", fmt.Errorf("native: %w", err)
	}
	root = filepath.Join(root, "native")
	key := sha256.Sum256(fmt.Appendf(nil, "%q", slices.Concat(
		[]string{text, header, foreign.Header, version, in.hardware(),
			runtime.GOARCH}, command, in.flags, c.flags, in.libs)))
	path = filepath.Join(root, hex.EncodeToString(key[:])+".so")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	return path, inCache(path, func(aside string) (string, error) {
		return in.compile(aside, text, slices.Concat(command, in.flags), c.flags)
	})
}

// inCache puts a file into the cache that build makes in a new folder.
func inCache(path string, build func(aside string) (string, error)) error {
	root := filepath.Dir(path)
	if err := cache.Usable(root, 1<<20); err != nil {
		return fmt.Errorf("native: %w", err)
	}
	aside, err := os.MkdirTemp(root, "build-")
	if err != nil {
		return fmt.Errorf("native: %w", err)
	}
	defer os.RemoveAll(aside)
	file, err := build(aside)
	if err != nil {
		return err
	}
	if err := onDisk(file); err != nil {
		return fmt.Errorf("native: keeping the compiled source: %w", err)
	}
	return os.Rename(file, path)
}

// onDisk waits until a file's content is on the disk, so that a crash after the rename cannot leave a truncated
// library.
func onDisk(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}

// versionOf identifies a compiler without running it, by its path, size and time of modification, as ccache does (its
// manual, "compiler_check").
func versionOf(compiler string) (string, error) {
	path, err := exec.LookPath(compiler)
	if err != nil {
		return "", err
	}
	return versionOfFile(path)
}

func versionOfFile(path string) (string, error) {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	return fmt.Sprint(path, info.Size(), info.ModTime().UnixNano()), nil
}

// most is the maximum length of compiler messages in an error.
const most = 8000

// compile compiles the text in a new folder.
func (in language) compile(folder, text string, command, flags []string) (library string, err error) {
	at := func(name string) string { return filepath.Join(folder, name) }
	for name, content := range map[string]string{in.file: text, "native.h": header, "foreign.h": foreign.Header} {
		if err := os.WriteFile(at(name), []byte(content), 0o644); err != nil {
			return "", fmt.Errorf("native: %w", err)
		}
	}
	library = at("library.so")
	args := slices.Concat(command[1:], []string{"-include", at("native.h"), "-I", folder, "-o", library, at(in.file)},
		flags, in.libs)
	said, err := exec.Command(command[0], args...).CombinedOutput()
	if err == nil {
		return library, nil
	}
	said = bytes.TrimSpace(bytes.ReplaceAll(said, []byte(folder+string(filepath.Separator)), nil))
	if len(said) > most {
		said = append(said[:most], "…"...)
	}
	return "", fmt.Errorf("native: %s does not compile the source (%w):\n%s", command[0], err, said)
}
