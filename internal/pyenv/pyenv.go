// Package pyenv makes private Python environments with pinned packages.
package pyenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/shardbook/shardbook/internal/cache"
	"github.com/shardbook/shardbook/internal/command"
)

// probe prints, a line each: the path of the interpreter itself (inside a virtual environment, of the one that it was
// made of), its version, whether that is as new as the arguments say, and whether it can make environments.
const probe = `import os, sys
print(os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable))
print("%d.%d.%d" % sys.version_info[:3])
print(sys.version_info >= tuple(map(int, sys.argv[1].split("."))))
try:
    import venv, ensurepip
    print("venv")
except ImportError:
    print("none")
`

// Find returns the path and version of a Python on the PATH that can make environments and is at least as new as least,
// such as "3.10". An error says what is missing and how to get it.
func Find(ctx context.Context, least string) (path, version string, err error) {
	err = errors.New("no python3 on the PATH: install Python " + least +
		" or newer (Debian, Ubuntu: apt-get install python3 python3-venv)")
	for _, name := range []string{"python3", "python"} {
		found, lookErr := exec.LookPath(name)
		if lookErr != nil {
			continue
		}
		output, runErr := exec.CommandContext(ctx, found, "-I", "-c", probe, least).Output()
		said := strings.Split(strings.TrimSpace(string(output)), "\n")
		switch {
		case runErr != nil || len(said) != 4:
			err = fmt.Errorf("%s does not run as Python 3 (%v): install Python %s or newer", found, runErr, least)
		case said[2] != "True":
			err = fmt.Errorf("%s is Python %s, need %s or newer: install one and put it on the PATH", found, said[1],
				least)
		case said[3] != "venv":
			err = fmt.Errorf("%s (Python %s) has no venv module: install it (Debian, Ubuntu: apt-get "+
				"install python3-venv)", found, said[1])
		default:
			return said[0], said[1], nil
		}
	}
	return "", "", err
}

// Python is the path of an environment's interpreter.
func Python(dir string) string { return filepath.Join(dir, "bin", "python") }

// Packages is how many packages requirements pin.
func Packages(requirements string) (count int) {
	for line := range strings.Lines(requirements) {
		if strings.Trim(line, " \n") != "" && line[0] != ' ' && line[0] != '#' { // not a hash, nor a comment
			count++
		}
	}
	return count
}

// sizeOf matches what pip prints when it begins to download a file: its package's name, and its size in parentheses.
var sizeOf = regexp.MustCompile(`^ *Downloading (?:\S*/)?(\w+)-\S+ (\(.+\))$`)

// Install makes an environment in dir with the packages that requirements pin with
// hashes. The options are added to pip's.
func Install(ctx context.Context, interpreter, dir, requirements string, report cache.Progress,
	options ...string) error {
	total := Packages(requirements)
	report(0, total, "making a Python environment")
	if err := (command.Command{Name: interpreter, Args: []string{"-I", "-m", "venv", dir}}).Run(ctx); err != nil {
		return err
	}
	pins := filepath.Join(dir, "requirements.txt")
	if err := os.WriteFile(pins, []byte(requirements), 0o644); err != nil {
		return err
	}
	collected := 0
	onLine := func(line string) {
		if name, ok := strings.CutPrefix(line, "Collecting "); ok {
			collected++
			name, _, _ = strings.Cut(name, "==")
			report(collected, total, "downloading "+name)
		} else if size := sizeOf.FindStringSubmatch(line); size != nil {
			report(collected, total, "downloading "+size[1]+" "+size[2])
		} else if strings.HasPrefix(line, "Installing collected packages") {
			report(collected, total, "unpacking the packages")
		}
	}
	temporary := filepath.Join(dir, "tmp") // not the system's, which may be too small for what pip downloads
	if err := os.Mkdir(temporary, 0o755); err != nil {
		return err
	}
	defer os.RemoveAll(temporary)
	// Isolated, and without the user's wishes for other places: whatever Python
	// finds elsewhere, pip would take for installed.
	pip := []string{"-I", "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--progress-bar=off",
		"--require-hashes", "-r", pins}
	return command.Command{
		Name: Python(dir),
		Args: append(pip, options...),
		Env: []string{"PIP_USER=0", "PIP_TARGET=", "PIP_PREFIX=", "PIP_ROOT=", "PIP_REQUIRE_VIRTUALENV=",
			"TMPDIR=" + temporary},
		OnLine: onLine,
		Advice: "check the network and pip's settings",
	}.Run(ctx)
}
