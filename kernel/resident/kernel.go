package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/shardbook/shardbook/lib/resident"
)

// The environment variables by which package kernel says how cells are built.
const (
	envModules   = "SHARDBOOK_CELL_MODULES" // folders of modules that replace others in cells
	envInProcess = "SHARDBOOK_IN_PROCESS"   // "1": cells have their devices themselves
)

// becomeKernel starts the notebook's process and becomes GoNB, which keeps this process's number.
func becomeKernel(connection, root string) error {
	gonb, err := exec.LookPath("gonb")
	if err != nil {
		return fmt.Errorf("%w: run `shardbook setup`", err)
	}
	// Symbols make linking slower and are not needed for line numbers.
	const flags = "-buildvcs=false '-ldflags=-s -linkmode=internal'"
	modules := []string{filepath.Clean(root)}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	set := map[string]string{
		"GOPROXY": "off",
		"GOFLAGS": flags,
		"PATH":    filepath.Join(filepath.Dir(self), "go") + string(filepath.ListSeparator) + os.Getenv("PATH"),
	}
	if os.Getenv(envInProcess) == "1" {
		set[resident.Env] = ""
	} else {
		modules = append(modules, filepath.SplitList(os.Getenv(envModules))...)
		// Without cgo, which netgo and osusergo avoid in the standard library, a program links faster.
		set["GOFLAGS"] += " -tags=resident,netgo,osusergo"
		if set[resident.Env], err = startNotebook(); err != nil {
			return err
		}
	}
	for name, value := range set {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	return syscall.Exec(gonb, []string{"gonb", "--kernel", connection, "-go_work=" + strings.Join(modules, ","),
		"-logtostderr=false", "-stderrthreshold=3", "-log_file=/dev/null"}, os.Environ())
}

// becomeCommand starts a notebook's process, and becomes a command whose cells' programs use it.
func becomeCommand(args []string) error {
	path, err := exec.LookPath(args[0])
	if err != nil {
		return err
	}
	socket, err := startNotebook()
	if err != nil {
		return err
	}
	if err := os.Setenv(resident.Env, socket); err != nil {
		return err
	}
	return syscall.Exec(path, args, os.Environ())
}

// startNotebook starts the notebook's process and returns its socket. The process removes the socket's folder.
func startNotebook() (path string, err error) {
	folder, err := os.MkdirTemp("", "shardbook-")
	if err != nil {
		return "", err
	}
	path = filepath.Join(folder, "notebook")
	process, err := start(path, "notebook")
	if err == nil {
		err = process.Start()
	}
	if err != nil {
		os.RemoveAll(folder)
		return "", fmt.Errorf("starting the notebook's process: %w", err)
	}
	return path, nil
}

// start returns a command of this program that serves a new socket. It is in a session of its own, since Jupyter
// interrupts and kills a kernel's group of processes.
func start(path string, args ...string) (*exec.Cmd, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	defer l.Close()
	file, err := l.File()
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, args...)
	cmd.ExtraFiles = []*os.File{file}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd, nil
}
